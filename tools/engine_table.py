"""Renews the table that ends docs/engines.md: what each engine has been found to keep.

Made from runs of the suite, never typed: `make test-engines`, and then
`python -m tools.engine_table .baton/test-engines.xml`. A row is a test, whose name says it; a
column is an engine that ran.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "engines.md"
SUITE = ROOT / "tests" / "engines"
HEADING = "## Results of the suite\n"
# The property of each test's result that names engine and version.
ENGINE = "engine"

# By test, in the order of the suite; by engine, whether all cases passed.
Results = Mapping[str, Mapping[str, bool]]


def names_of(folder: Path) -> Iterator[str]:
    """The names of the tests that run on every engine."""
    for path in sorted(folder.glob("test_*.py")):
        functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
        for function in functions:
            takes_core = any(argument.arg == "core" for argument in function.args.args)
            if takes_core and function.name.startswith("test_"):
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


def sentence_of(test: str) -> str:
    """The name of a test, as a sentence."""
    return test.removeprefix("test_").replace("_", " ").capitalize()


def main(*paths: str) -> None:
    """Write the table of these runs to the page."""
    found = results_of(*(Path(path).read_text() for path in paths))
    results = {test: found.get(test, {}) for test in names_of(SUITE)}
    before = PAGE.read_text().partition(HEADING)[0]
    PAGE.write_text(f"{before}{HEADING}\n{table_of(results)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
