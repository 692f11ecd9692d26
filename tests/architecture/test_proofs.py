"""Findings of two reviews, and the tests that prove them mended (docs/benchmarks/cluster.md)."""

import re

from tests.architecture.test_references import ROOT

PAGE = ROOT / "docs/benchmarks/cluster.md"
# S: what stops an operator, H: what hurts, K: on a real cluster. Without those of telemetry.
FINDINGS = {
    *(f"S{number}" for number in range(1, 9)),
    *(f"H{number}" for number in (*range(1, 8), *range(15, 19), *range(20, 24))),
    *(f"K{number}" for number in (*range(1, 5), *range(7, 12), *range(13, 16))),
}
# Rows without a test say why.
WITHOUT_TEST = {"K9"}


def rows() -> list[list[str]]:
    table = PAGE.read_text().partition("| Finding |")[2].splitlines()
    lines = [line for line in table[2:] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_finding_has_a_test_or_says_why_not() -> None:
    proved = {
        finding
        for findings, _, proof in rows()
        for finding in findings.split()
        if re.search(r"`[a-z/]*test_\w+", proof)
    }
    assert proved - {"-"} == FINDINGS - WITHOUT_TEST
    assert {finding for row in rows() for finding in row[0].split()} - {"-"} == FINDINGS


def test_every_test_that_proves_something_is_there() -> None:
    named = re.findall(r"`(?:[a-z_/]*/)?(test_\w+)(\.py)?`", " ".join(row[2] for row in rows()))
    paths = list((ROOT / "tests").rglob("test_*.py"))
    files = {path.name for path in paths}
    whole = "\n".join(path.read_text() for path in paths)
    missing = {
        name
        for name, is_file in named
        if (f"{name}.py" not in files if is_file else f"def {name}(" not in whole)
    }
    assert missing == set()
