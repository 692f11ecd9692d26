"""References to decisions and to pages lead somewhere, wherever they stand: code, protos, pages,
Makefile, chart. Links between pages: test_docs.py."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.pages import anchors

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
NUMBERS = {page.name[:4] for page in DECISIONS}
FOLDERS = ("baton", "bench", "services", "protos", "deploy", "loadtest", "tools", "tests", "docs")
SUFFIXES = {
    ".py", ".pyi", ".proto", ".md", ".lua", ".cpp", ".h", ".yaml", ".yml", ".tpl", ".toml", ".txt",
    ".sh", ".html", ".js", ".css", ".Dockerfile",
}  # fmt: skip
SOURCES = [
    path
    for folder in (*FOLDERS, ".ci", ".github")
    for path in sorted((ROOT / folder).rglob("*"))
    # This file plants references that lead nowhere.
    if path.is_file() and path.suffix in SUFFIXES and path != Path(__file__)
] + [path for path in sorted(ROOT.iterdir()) if path.suffix in SUFFIXES or path.name == "Makefile"]
# README.md is index.md on the site.
PAGES = {path.name for path in SOURCES if path.suffix == ".md"} | {"index.md"}

URL = re.compile(r"\w+://\S+")
# "decision 0010", "decisions 0022 and 0032"; a line break or a link's bracket may stand between.
DECISION = re.compile(r"\bdecisions?[\s#*/\[]+(\d+(?:(?:, | and )\d+)*)", re.IGNORECASE)
FOREIGN_NUMBER = re.compile(r"\bD\d{1,2}\b|\breliability \d")
PAGE = re.compile(r"([\w./-]*\w\.md)\b(?:#([\w-]+))?")
# A path below docs: a page, a folder, a picture. Not what benchmarks are yet to write.
BELOW_DOCS = re.compile(r"(?<![\w/.-])docs/(?!benchmarks/results/)[\w/-]*\w(?:\.\w+)*")


def unresolved(text: str) -> Iterator[str]:
    """The references in `text` that lead nowhere."""
    text = URL.sub("", text)
    yield from FOREIGN_NUMBER.findall(text)
    for numbers in DECISION.findall(text):
        yield from (f"decision {n}" for n in re.findall(r"\d+", numbers) if n not in NUMBERS)
    for path in BELOW_DOCS.findall(text):
        if not (ROOT / path).exists():
            yield path
    for path, anchor in PAGE.findall(text):
        is_below_docs = "docs/" in path
        page = ROOT / "docs" / path.rpartition("docs/")[2]
        if not (page.exists() if is_below_docs else path.rpartition("/")[2] in PAGES):
            yield path
        elif anchor and is_below_docs and anchor not in anchors(page.read_text()):
            yield f"{path}#{anchor}"


def test_every_reference_to_a_decision_or_a_page_leads_somewhere() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {reference}"
        for path in SOURCES
        for reference in unresolved(path.read_text())
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        '"""The one prefix hash (decision D16)."""',
        "# Promised beyond the prompt (reliability 5.4).",
        "// Opaque 32 bytes (decision 9999).",
        "as decided\n# (see decisions 0001 and\n# 0002, or decision\n# 10).",
        "without merging, frames shrink (token-path.md)",
        "docs/decisions/0012",
        "docs/decisions/0012-right-keys-per-address.md",
        'runbook: "docs/operations.md#batonnosuchalert"',
        "see docs/no-such-folder",
    ],
)
def test_a_reference_that_leads_nowhere_is_found(text: str) -> None:
    assert list(unresolved(text))


@pytest.mark.parametrize(
    "text",
    [
        "shared by tokenizer, router and workers (decision 0028)",
        "Decisions 0022 and\n0032 say why.",
        "[decision\n0012](../../docs/decisions/0012-wrong-keys-per-address.md)",
        'runbook: "docs/operations.md#batonnoreadyworkers"',
        "https://example.org/docs/no-such-page.md#part and docs/benchmarks",
        "every decision of the quota service",
    ],
)
def test_a_reference_that_leads_somewhere_is_left_alone(text: str) -> None:
    assert not list(unresolved(text))


def test_decisions_are_numbered_without_gaps_and_say_their_numbers() -> None:
    for number, page in enumerate(DECISIONS, start=1):
        assert re.fullmatch(rf"{number:04}-[a-z0-9-]+\.md", page.name)
        assert page.read_text().startswith(f"# {number}. ")
