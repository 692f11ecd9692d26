"""The cost of a front that relays 10,000 messages a second, for its core.

`python -m bench.handoff.relay`.

A real core process decodes 32 sequences with a model that takes 20 ms of CPU a step; after each of
them its front sends 200 messages over a real stream to a third process. Measured in the core: the
time between two runs of the model, with a front that sends nothing, one that merges what a step
brings into one frame (as Baton's do), and one that writes a frame for each message; sharing CPUs,
and with the core alone on one. Prints one JSON line per case.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import grpc
import numpy as np
import uvloop

from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.messages import AddSequence, SamplingParams
from baton.runtime.grpc_server import start_server
from baton.runtime.shared_stream import FrameWriter, ServerFrameStream
from baton.wire.v1 import worker_pb2, worker_pb2_grpc
from bench.measured_process import put_ahead

GAP_AIM = 0.03
Mode = Literal["nothing", "merged", "one by one"]
_STEP_S = 0.02
_MESSAGES_PER_STEP = 200
_NUM_SEQS = 32
_PROMPT_TOKENS = 16
_NUM_STEPS = 200
_SKIPPED_STEPS = 25  # prefill, connections, caches
_SINK_GRACE_S = 5.0
_MAX_QUEUED = _MESSAGES_PER_STEP * _NUM_STEPS


@dataclass(frozen=True, slots=True)
class Case:
    """One way to relay. `is_apart`: the core has a CPU of its own."""

    mode: Mode
    is_apart: bool = False

    @property
    def core_cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))[:1] if self.is_apart else []

    @property
    def other_cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))[1:] if self.is_apart else []


class RelayServicer(worker_pb2_grpc.DecodeWorkerServicer):
    """Sends what `relay` is given to the one peer that connects."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._writer: FrameWriter[worker_pb2.WorkerFrame] | None = None
        self.connected = asyncio.Event()
        self.ended = asyncio.Event()
        self.num_messages = 0

    async def Serve(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._writer = FrameWriter(ServerFrameStream(context), max_queued=_MAX_QUEUED)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._writer.run())
            self.connected.set()
            await self.ended.wait()
            await self._writer.flush()
            writing.cancel()

    def relay(self, step: int) -> None:
        """Send what one step brings."""
        handles = list(range(_MESSAGES_PER_STEP))
        if self._mode == "merged":
            self._send(step, handles)
        elif self._mode == "one by one":
            for handle in handles:
                self._send(step, [handle])

    def _send(self, step: int, handles: list[int]) -> None:
        assert self._writer is not None
        ones = [1] * len(handles)
        tokens = worker_pb2.Step(
            step=step, handles=handles, choices=ones, first_index=ones, ids=handles
        )
        self._writer.send(worker_pb2.WorkerFrame(step=tokens))
        self.num_messages += len(handles)


async def measure(case: Case) -> dict[str, object]:
    """Run one case; the core's own gaps, and what the front relayed."""
    servicer = RelayServicer(case.mode)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "gaps.json"
        async with _core(case, result) as client, _sink(servicer, case):
            started = time.perf_counter()
            await _run_to_end(client, servicer)
            wall_s = time.perf_counter() - started
        gaps = json.loads(result.read_text())
    return {
        "measure": "relay",
        "mode": case.mode,
        "core_has_own_cpu": case.is_apart,
        "aim_gap_share": GAP_AIM,
        "step_s": _STEP_S,
        "batch": _NUM_SEQS,
        "messages_per_s": servicer.num_messages / wall_s,
        **gaps,
    }


async def _run_to_end(client: ProcessEngineClient, servicer: RelayServicer) -> None:
    """All sequences from start to end."""
    num_open = _NUM_SEQS
    for seq_id in range(1, _NUM_SEQS + 1):
        client.send(_request(seq_id))
    while num_open:
        events = await client.events()
        num_open -= len(events.finished)
        servicer.relay(events.step)


def _request(seq_id: int) -> AddSequence:
    prompt = np.full(_PROMPT_TOKENS, seq_id, "<u4")
    sampling = SamplingParams(_NUM_STEPS, ignore_eos=True)
    return AddSequence(
        seq_id=seq_id,
        request_id=f"bench-{seq_id}",
        choice=0,
        kind="local",
        token_ids=prompt.tobytes(),
        num_emitted=0,
        block_hashes=b"",
        cache_key=bytes(32),
        sampling=sampling,
        credit=_NUM_STEPS,
    )


@contextlib.asynccontextmanager
async def _core(case: Case, result: Path) -> AsyncIterator[ProcessEngineClient]:
    blocks_each = (_PROMPT_TOKENS + _NUM_STEPS) // 16 + 2
    options: dict[str, object] = {
        "--step-s": _STEP_S,
        "--max-num-seqs": _NUM_SEQS,
        "--num-blocks": _NUM_SEQS * blocks_each,
        "--skip-runs": _SKIPPED_STEPS,
        "--result": result,
    }
    words = [str(word) for pair in options.items() for word in pair]
    cpus = ["--cpus", *map(str, case.core_cpus)] if case.core_cpus else []
    spec = EngineSpec("bench.engine.paced_core")
    client = await ProcessEngineClient.start(spec, [*words, *cpus])
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def _sink(servicer: RelayServicer, case: Case) -> AsyncIterator[None]:
    """The process that takes the frames; ended when the stream has."""

    def register(server: grpc.aio.Server) -> None:
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(servicer, server)

    server = await start_server("127.0.0.1:0", register)
    sink = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.handoff.relay_sink",
        f"127.0.0.1:{server.port}",
        *map(str, case.other_cpus),
        start_new_session=True,
    )
    try:
        await servicer.connected.wait()
        yield
        servicer.ended.set()
        async with asyncio.timeout(_SINK_GRACE_S):
            await sink.wait()
    finally:
        if sink.returncode is None:
            sink.kill()
            await sink.wait()
        await server.stop(0)


def main() -> None:
    put_ahead(os.getpid())
    all_cpus = os.sched_getaffinity(0)
    for is_apart in (False, True)[: len(all_cpus)]:
        for mode in get_args(Mode):
            case = Case(mode, is_apart)
            if case.other_cpus:
                os.sched_setaffinity(0, case.other_cpus)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                record = runner.run(measure(case))
            os.sched_setaffinity(0, all_cpus)
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
