"""Blocks between two real processes, by each transport, as `python -m bench handoff` moves them."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from baton.runtime.shared_stream import StreamLost
from bench.handoff.handoff import BenchOptions, Peer, run_bench, running_peer
from bench.handoff.handoff_pair import Pool
from bench.handoff.handoff_report import render
from tests import needs


@pytest.mark.parametrize("transport", ["shm", "grpc", pytest.param("nixl", marks=needs.nixl)])
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


async def test_a_sending_process_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    options = BenchOptions(num_blocks=2, transports=("grpc",))
    pool = Pool(options.num_blocks)
    transports = pool.transports(("grpc",), tmp_path, is_sender=False)
    with contextlib.ExitStack() as process, pytest.raises(ExceptionGroup) as raised:
        peer = Peer(
            pool, transports, process.enter_context(running_peer(tmp_path, options, "grpc"))
        )
        async with asyncio.timeout(100), peer.link() as link:
            await link.transfer(options.num_blocks)
            process.close()
            await link.transfer(options.num_blocks)

    assert raised.group_contains(StreamLost)
