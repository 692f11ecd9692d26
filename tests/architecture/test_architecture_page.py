"""docs/architecture.md names every package and every decision, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def packages() -> set[str]:
    """Every folder with an __init__.py, as it is imported."""
    return {
        ".".join(file.parent.relative_to(ROOT).parts)
        for folder in ("baton", "services", "bench")
        for file in (ROOT / folder).rglob("__init__.py")
    }


def test_every_package_has_its_line_and_every_line_its_package() -> None:
    named = re.findall(r"^\| `((?:baton|services|bench)[\w.]*)` \| \S", PAGE, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) == packages()


def test_every_decision_is_in_the_table_under_its_title() -> None:
    rows = re.findall(r"^\| (\d{4}) \| \[(.+)\]\(decisions/(\S+)\) \|$", PAGE, re.MULTILINE)
    expected = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = page.read_text().split("\n", 1)[0].partition(". ")[2]
        expected.append((page.name[:4], title, page.name))
    assert rows == expected
