"""The page of engines has what a run of the suite has found, test by test."""

from tools.engine_table import HEADING, PAGE, SUITE, names_of, results_of, sentence_of, table_of

RUN = """<testsuites><testsuite>
<testcase name="test_it_stops[baton-1]"><properties><property name="engine" value="baton"/>
</properties></testcase>
<testcase name="test_it_stops[vllm-1]"><properties><property name="engine" value="vllm 1.0"/>
</properties></testcase>
<testcase name="test_it_stops[vllm-2]"><properties><property name="engine" value="vllm 1.0"/>
</properties><failure message="no"/></testcase>
<testcase name="test_it_starts[baton]"><properties><property name="engine" value="baton"/>
</properties></testcase>
<testcase name="test_of_a_stack"/>
</testsuite></testsuites>"""


def test_a_row_is_yes_where_all_cases_passed() -> None:
    assert table_of(results_of(RUN)).splitlines() == [
        "| | baton | vllm 1.0 |",
        "|---|---|---|",
        "| It stops | yes | **no** |",
        "| It starts | yes | not tried |",
    ]


def test_the_page_has_results_of_tests_that_are_there_and_none_that_failed() -> None:
    rows = PAGE.read_text().partition(HEADING)[2].splitlines()
    found = [row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")]
    assert len(found) > 1
    assert set(found[1:]) <= {sentence_of(test) for test in names_of(SUITE)}
    assert not [row for row in rows if "**no**" in row]
