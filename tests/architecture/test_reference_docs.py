"""Reference tables in docs/ say what the code says; tools/reference_tables.py renews them."""

import pytest

from tools import reference_tables


@pytest.mark.parametrize("page", reference_tables.PAGES)
def test_reference_table_equals_the_code(page: str) -> None:
    text = (reference_tables.ROOT / page).read_text()
    assert text == reference_tables.renewed(page), "run: python -m tools.reference_tables"
