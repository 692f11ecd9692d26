"""Baton's connector beside vLLM's own, under the faults that a pair of workers meets: a table."""

import asyncio
import random
from pathlib import Path

import pytest

from bench.serving.nixl_pair import nixl_folder
from tests.engines.connectors.ours import OurCases
from tests.engines.connectors.outcomes import CASES, Outcome, table
from tests.engines.connectors.stock import StockCases

# Each case has a prompt of its own: five blocks of 32, of which the last is not full.
PROMPTS = [random.Random(number).choices(range(100, 4000), k=150) for number in range(8)]


@pytest.fixture(scope="module")
def columns() -> dict[str, dict[str, Outcome]]:
    """By connector: filled by the tests, printed at the end."""
    return {}


@pytest.mark.timeout(3000)
def test_the_stock_connector_meets_every_case(
    columns: dict[str, dict[str, Outcome]], tmp_path: Path
) -> None:
    """It is asserted that each case was tried: how it ends is vLLM's, and read in the table."""
    if nixl_folder():
        columns["NixlConnector"] = StockCases(tmp_path, PROMPTS).run()
        assert columns["NixlConnector"]["none"].answer == "right"
        assert columns["NixlConnector"].keys() <= CASES.keys()


@pytest.mark.timeout(3000)
def test_ours_is_never_wrong_holds_nothing_and_ends(
    columns: dict[str, dict[str, Outcome]],
) -> None:
    ours = asyncio.run(OurCases(PROMPTS).run())
    columns["BatonConnector"] = ours
    print("\n" + "\n".join(table(columns)))
    assert ours.keys() == CASES.keys()
    assert ours["none"].answer == "right"
    assert [name for name, each in ours.items() if each.is_wrong] == []
    assert [name for name, each in ours.items() if each.is_hung] == []
    assert [name for name, each in ours.items() if each.is_leaked] == []
