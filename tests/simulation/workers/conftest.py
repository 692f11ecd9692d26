"""Runs the tests of a file by each transport between the workers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.workers import fleet

TRANSPORTS = ["grpc", "shm"] if sys.platform == "linux" else ["grpc"]


@pytest.fixture(params=TRANSPORTS)
def by_each_transport(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Fleets of the test use this transport."""
    folder: Path | None = None
    if request.param == "shm":
        folder = tmp_path_factory.mktemp("handoff")
    fleet.HANDOFF_DIR = folder
    yield str(request.param)
    fleet.HANDOFF_DIR = None
