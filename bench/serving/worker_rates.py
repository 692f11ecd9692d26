"""Asks the workers of a running stack for the rates that they measured, as a router does."""

import asyncio
from collections.abc import Mapping
from typing import Any

from baton.runtime.grpc_channel import open_channel
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import worker_pb2, worker_pb2_grpc

_TIMEOUT_S = 30.0


def read_rates(endpoints: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the router's `break_even.Figures`, of `prefill-1` and `decode-1`.

    A decode worker that never prefilled counts as fast as the other one. Raises TimeoutError.
    """
    return asyncio.run(_rates(endpoints))


async def _rates(endpoints: Mapping[str, str]) -> dict[str, Any]:
    _, prefill = await _read(endpoints["prefill-1"])
    shape, decode = await _read(endpoints["decode-1"])
    return {
        "block_size": shape.block_size,
        "block_bytes": shape.block_bytes,
        "prefill_tokens_per_s": prefill.prefill_tokens_per_s or decode.prefill_tokens_per_s,
        "local_prefill_tokens_per_s": decode.prefill_tokens_per_s or prefill.prefill_tokens_per_s,
        "decode_step_s": decode.decode_step_s,
        "handoff_bytes_per_s": decode.handoff_bytes_per_s,
        "handoff_s": decode.handoff_s,
        "chunk_tokens": decode.chunk_tokens,
    }


async def _read(endpoint: str) -> tuple[worker_pb2.Register, worker_pb2.Load]:
    """Read a worker's registration and its first load."""
    async with asyncio.timeout(_TIMEOUT_S), open_channel(endpoint) as channel:
        watch = worker_pb2_grpc.WorkerReportsStub(channel).Watch()
        await watch.write(worker_pb2.ReportAck(protocol=PROTOCOL_VERSION, router_id="bench"))
        register = worker_pb2.Register()
        while True:
            report = await watch.read()
            if report.WhichOneof("report") == "register":
                register = report.register
            elif report.WhichOneof("report") == "load":
                watch.cancel()
                return register, report.load
