"""docs/models.md says what the tables say: nothing that is tested is missing there."""

from pathlib import Path

import pytest

from baton.model.cpu.dense import FAMILY
from baton.model.load.quantization import SERVED_METHODS
from baton.testing.tiny_models import REFUSED, SERVED

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.mark.parametrize("names", [SERVED, REFUSED, SERVED_METHODS])
def test_the_page_has_each_name(names):
    text = PAGE.read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_page_counts_the_family_of_the_compiled_step():
    row = next(line for line in PAGE.read_text().splitlines() if "one compiled step" in line)
    named = {SERVED[name][0].removesuffix("Config") for name in row.split("`")[1::2]}
    assert named == {name.removesuffix("ForCausalLM") for name in FAMILY}
