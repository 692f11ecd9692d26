"""Reference tables in docs/ say what the code says; tools/reference_tables.py renews them."""

import dataclasses

import pytest

from tools import reference_tables


@pytest.mark.parametrize("page", reference_tables.PAGES)
def test_reference_table_equals_the_code(page: str) -> None:
    text = (reference_tables.ROOT / page).read_text()
    assert text == reference_tables.renewed(page), "run: python -m tools.reference_tables"


@pytest.mark.parametrize("cls", [cls for _, _, cls in reference_tables.SETTINGS])
def test_each_setting_has_a_meaning_of_its_own(cls: type) -> None:
    meanings = reference_tables.meanings(cls)
    assert set(meanings) == {field.name for field in dataclasses.fields(cls)}
    assert not [name for name, meaning in meanings.items() if len(meaning.split()) < 2]
