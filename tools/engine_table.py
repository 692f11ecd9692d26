"""Renews what each engine has been found to keep: the table that ends docs/engines.md, and the
guarantees that `/v1/models` and `baton status` show.

Made from runs of the suite, never typed: `make test-engines`, and then
`python -m tools.engine_table .baton/test-engines.xml`. A row is a test, whose name says it; a
column is an engine that ran.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from baton.wire import guarantees

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "engines.md"
SUITE = ROOT / "tests" / "engines"
HEADING = "## Results of the suite\n"
# The property of each test's result that names engine and version.
ENGINE = "engine"
# By guarantee, the tests that show it.
GUARANTEES = {
    "greedy_answer_after_failover": (
        "test_an_answer_goes_on_behind_the_tokens_of_earlier_attempts",
    ),
    "seeded_answer_after_failover": (
        "test_an_answer_goes_on_behind_the_tokens_of_earlier_attempts",
        "test_a_seed_is_one_answer_whatever_else_runs",
    ),
    "structured_answer_after_failover": (
        "test_an_answer_with_a_grammar_goes_on_behind_its_tokens",
    ),
    "gapless_tokens": ("test_tokens_are_gapless_and_end_with_a_reason",),
    "exact_pause": ("test_credit_stops_exactly_and_the_answer_goes_on_exactly",),
    "tenants_share_no_cache": ("test_hashes_are_those_of_the_tokenizer_and_of_one_tenant",),
    "cancel_frees_everything": (
        "test_an_abort_frees_everything_in_every_phase",
        "test_nothing_is_held_after_hundreds_of_aborts",
    ),
}
# Those that no run can show to hold always: vLLM's sums depend on what else a step computes.
EXPECTED = {"vllm": [name for name in GUARANTEES if name.endswith("_after_failover")]}

# By test, in the order of the suite; by engine, whether all cases passed.
Results = Mapping[str, Mapping[str, bool]]


def names_of(folder: Path) -> Iterator[str]:
    """The names of tests that run on every engine: a file for one of them marks all its tests."""
    for path in sorted(folder.glob("test_*.py")):
        if "\npytestmark = " in path.read_text():
            continue
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, kinds)]
        for function in functions:
            takes = {argument.arg for argument in function.args.args}
            # A test that ends its core has one of its own, and notes the engine itself.
            if takes & {"core", "record_property"} and function.name.startswith("test_"):
                yield function.name


def results_of(*runs: str) -> Results:
    """The results of runs, as pytest writes them."""
    results: dict[str, dict[str, bool]] = {}
    cases = [case for xml in runs for case in ElementTree.fromstring(xml).iter("testcase")]
    for case in cases:
        engine = next(
            (p.get("value") for p in case.iter("property") if p.get("name") == ENGINE), None
        )
        if engine is None:
            continue
        test = str(case.get("name")).partition("[")[0]
        has_passed = not any(case.find(bad) is not None for bad in ("failure", "error", "skipped"))
        known = results.setdefault(test, {})
        known[engine] = known.get(engine, True) and has_passed
    return results


def table_of(results: Results) -> str:
    """One row for each test, one column for each engine."""
    engines = sorted({engine for each in results.values() for engine in each})
    lines = [f"| | {' | '.join(engines)} |", "|---" * (len(engines) + 1) + "|"]
    words = {True: "yes", False: "**no**", None: "not tried"}
    for test, each in results.items():
        cells = [words[each.get(engine)] for engine in engines]
        lines.append(f"| {sentence_of(test)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def guarantees_of(results: Results) -> dict[str, dict[str, str]]:
    """By engine, by guarantee, the level."""
    engines = sorted({engine for each in results.values() for engine in each})
    return {
        engine: {name: _level(results, engine, name) for name in GUARANTEES} for engine in engines
    }


def _level(results: Results, engine: str, name: str) -> str:
    if not all(results.get(test, {}).get(engine) for test in GUARANTEES[name]):
        return "no"
    return "expected" if name in EXPECTED.get(engine.partition(" ")[0], ()) else "yes"


def sentence_of(test: str) -> str:
    """The name of a test, as a sentence."""
    return test.removeprefix("test_").replace("_", " ").capitalize()


def main(*paths: str) -> None:
    """Write what these runs have found."""
    found = results_of(*(Path(path).read_text() for path in paths))
    results = {test: found.get(test, {}) for test in names_of(SUITE)}
    before = PAGE.read_text().partition(HEADING)[0]
    PAGE.write_text(f"{before}{HEADING}\n{table_of(results)}")
    guarantees.FILE.write_text(json.dumps(guarantees_of(results), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
