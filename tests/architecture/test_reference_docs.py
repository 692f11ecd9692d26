"""Reference tables in docs/ say what the code says; tools/reference_tables.py renews them."""

from pathlib import Path

import pytest

from tools import reference_tables

ROOT = Path(__file__).parents[2]
TABLES = [
    ("docs/telemetry.md", reference_tables.metrics),
    ("docs/configuration.md", reference_tables.settings),
]


@pytest.mark.parametrize(("page", "table"), TABLES, ids=[page for page, _ in TABLES])
def test_reference_table_equals_the_code(page: str, table) -> None:
    text = (ROOT / page).read_text()
    missing = [line for line in table() if line.strip() and line.strip() not in text]
    assert not missing, f"{page} lacks: {missing[:3]}"
