"""The word of the parent process to each of several gateways."""

import os
from pathlib import Path

import pytest

from baton.runtime.environment import SettingsError, parse
from baton.runtime.process import Misconfigured
from services.gateway.http.shared_listener import ConnectionCounts
from services.gateway.processes.supervisor import place_of
from services.gateway.settings import PREFIX, GatewaySettings

SETTINGS = GatewaySettings(
    quota=("q:1",), tokenizer=("t:1",), router=("r:1",), secret_file=Path("secret"), processes=2
)


def test_a_process_has_the_place_that_its_parent_names() -> None:
    counts = ConnectionCounts.create(2)
    try:
        place = place_of(["2", str(counts.file)], SETTINGS)
        assert place is not None
        assert place.number == 1
        assert place.counts.is_turn_of(1, 3)
    finally:
        os.close(counts.file)
    assert place_of([], SETTINGS) is None


@pytest.mark.parametrize("name", ["PROCESS", "SHARED_COUNTS"])
def test_a_place_cannot_be_set(name: str) -> None:
    with pytest.raises(SettingsError, match="unknown setting"):
        parse(GatewaySettings, PREFIX, {f"{PREFIX}{name}": "1"})


def test_other_arguments_are_refused() -> None:
    with pytest.raises(Misconfigured, match="no arguments"):
        place_of(["--help"], SETTINGS)
