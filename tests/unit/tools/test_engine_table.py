"""The page of engines has what a run of the suite has found, test by test."""

import json

from baton.wire import guarantees
from tools.engine_table import (
    GUARANTEES,
    HEADING,
    PAGE,
    SUITE,
    guarantees_of,
    names_of,
    results_of,
    sentence_of,
    table_of,
)

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


def test_a_guarantee_is_what_its_tests_have_shown_and_never_more() -> None:
    every = {
        test: {"baton": True, "vllm 1.0": True} for tests in GUARANTEES.values() for test in tests
    }
    found = guarantees_of(every)
    assert set(found["baton"].values()) == {"yes"}
    assert found["vllm 1.0"]["greedy_answer_after_failover"] == "expected"
    every["test_an_abort_frees_everything_in_every_phase"]["vllm 1.0"] = False
    assert guarantees_of(every)["vllm 1.0"]["cancel_frees_everything"] == "no"


def test_the_guarantees_that_are_shown_are_those_of_the_page() -> None:
    rows = PAGE.read_text().partition(HEADING)[2].strip().splitlines()
    head, _, *body = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    tests = {sentence_of(test): test for test in names_of(SUITE)}
    results = {
        tests[name]: {engine: cell == "yes" for engine, cell in zip(head[1:], cells, strict=True)}
        for name, *cells in body
    }
    assert json.loads(guarantees.FILE.read_text()) == guarantees_of(results)
