"""Blocks between two real processes, by each transport, as `baton bench handoff` moves them."""

import importlib.util
import json
from pathlib import Path

import pytest

from baton.bench.handoff import BenchOptions, run_bench
from baton.bench.handoff_report import render

needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl_cu12") is None, reason="NIXL is not installed"
)


@pytest.mark.parametrize("transport", ["shm", "grpc", pytest.param("nixl", marks=needs_nixl)])
def test_every_byte_arrives_by_each_transport(transport: str, tmp_path: Path) -> None:
    options = BenchOptions(num_blocks=20, num_rounds=2, transports=(transport,))

    records = run_bench(options, tmp_path / "results.jsonl", lambda line: None)

    _, measured = records
    assert measured["contender"] == transport
    assert len(measured["transfer_s"]) == len(measured["exposed_s"]) == 2
    assert len(measured["memory_copy_s"]) == len(measured["grpc_stream_s"]) == 2
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    assert f"| **{transport}** |" in render(records)
