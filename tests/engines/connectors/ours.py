"""The cases with Baton's connector: two workers, fronts and cores as they are, and a gateway."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from baton.engine.process.process_client import ProcessEngineClient
from baton.engine.protocol.cache_messages import SnapshotHashes
from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import StepEvents
from baton.system.clock import SystemClock
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.wire.v1 import handoff_pb2, router_pb2
from baton.worker.deps import WorkerDeps
from baton.worker.program import make_parts
from services.decode_worker.front import DecodeFront
from services.prefill_worker.front import PrefillFront
from tests.engines.conftest import ENGINES, OPTIONS
from tests.engines.connectors.outcomes import (
    ANSWER_LIMIT_S,
    HELD_LIMIT_S,
    NOTHING,
    NUM_TOKENS,
    Outcome,
    judge,
)
from tests.simulation.workers.fleet import (
    PREFILL_ENDPOINT,
    Answer,
    FakeGateway,
    Tamper,
    TamperedStream,
    pass_on,
)

LOAD_TIMEOUT_S = 600.0
DECODE, PREFILL = router_pb2.WORKER_ROLE_DECODE, router_pb2.WORKER_ROLE_PREFILL


@dataclass
class Worker:
    """One worker: its core, its front, and the streams that end with it."""

    client: ProcessEngineClient
    deps: WorkerDeps
    front: Any = None
    streams: list[MemoryStream] = field(default_factory=list)
    num_free: int = 0
    num_free_at_rest: int = 0

    async def look(self) -> int:
        """Blocks that are not free, as the core tells now."""
        told = asyncio.Event()

        def take(events: StepEvents) -> None:
            self.num_free = events.load.num_blocks_free
            if events.snapshot is not None:
                told.set()

        self.deps.dispatcher.observe(take)
        self.deps.dispatcher.send(SnapshotHashes())
        await told.wait()
        return self.num_free_at_rest - self.num_free

    async def run(self) -> None:
        """Serve until cancelled; when the core dies, the process would."""
        try:
            await self.front.run()
        except* CoreDied:
            for stream in self.streams:
                stream.cancel()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.client.pid, number)


async def start_worker(role: int, name: str, block_size: int) -> Worker:
    options = {**OPTIONS, "--block-size": str(block_size), "--kv-memory": "8MiB"}
    words = [word for option in options.items() for word in option]
    client = await ProcessEngineClient.start(ENGINES["vllm"], words, load_timeout_s=LOAD_TIMEOUT_S)
    deps = make_parts(
        client,
        worker_id=name,
        role=role,  # type: ignore[arg-type]
        clock=SystemClock(),
        random_bytes=random.Random(name).randbytes,
    )
    return Worker(client, deps)


class Pair:
    """A decode worker and the prefill worker that it dials, joined in this process."""

    def __init__(self, decode: Worker, prefill: Worker, tasks: asyncio.TaskGroup) -> None:
        self.decode = decode
        self.prefill = prefill
        self.to_prefill: Tamper = pass_on
        self.to_decode: Tamper = pass_on
        self.gateway: FakeGateway
        self._tasks = tasks
        self._keys = random.Random(9)
        self._running = []
        decode.front = DecodeFront(decode.deps, self._dial)
        prefill.front = PrefillFront(prefill.deps)
        self._run(decode, prefill)

    def _run(self, *workers: Worker) -> None:
        self._running += [self._tasks.create_task(worker.run()) for worker in workers]

    async def connect(self) -> None:
        """A gateway that knows the decode worker; both workers are at rest."""
        ours, theirs = memory_stream_pair()
        self._running.append(self._tasks.create_task(self.decode.front.serve(theirs)))
        self.gateway = FakeGateway(ours, "gateway-1")
        await self.gateway.hello()
        self._running.append(self._tasks.create_task(self.gateway.run()))
        for worker in (self.decode, self.prefill):
            await worker.look()
            worker.num_free_at_rest = worker.num_free

    async def replace_prefill(self, worker: Worker) -> None:
        """The address is another worker's from now on."""
        self.prefill = worker
        worker.front = PrefillFront(worker.deps)
        self._run(worker)

    async def ask(self, prompt: Sequence[int], endpoint: str, cache_key: bytes = b"") -> Answer:
        answer = await self.gateway.submit(
            prompt,
            model_fp=self.decode.client.info.model_fp,
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
            prefill_endpoint=endpoint,
            cache_key=cache_key or self._keys.randbytes(32),
        )
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await answer.over()
        except TimeoutError:
            await self.gateway.cancel(f"request-{answer.handle}")
            raise

    async def text(self, prompt: Sequence[int], endpoint: str = "", key: bytes = b"") -> list[int]:
        """A whole answer, computed by the decode worker alone by default."""
        answer = await self.ask(prompt, endpoint, key)
        assert not failure_of(answer)
        return answer.tokens[0]

    async def outcome(self, prompt: Sequence[int]) -> Outcome:
        """Ask with a handoff, and note what comes of it."""
        right, key = await self.text(prompt), self._keys.randbytes(32)
        began_s = time.monotonic()
        try:
            answer = await self.ask(prompt, PREFILL_ENDPOINT, key)
        except TimeoutError:
            told = NOTHING
        else:
            reason = failure_of(answer)
            told = f"refused: {reason}" if reason else judge(answer.tokens.get(0), right)
        seconds = time.monotonic() - began_s
        held = await self._num_held()
        later = judge(await self.text(prompt, key=key), right)
        return Outcome(told, seconds, later, held)

    async def end(self) -> None:
        self.to_prefill = self.to_decode = pass_on
        await self.decode.front.drain(1.0)
        for task in self._running:
            task.cancel()

    async def _num_held(self) -> int:
        end_s = time.monotonic() + HELD_LIMIT_S
        while (held := await self.decode.look()) and time.monotonic() < end_s:
            await asyncio.sleep(0.1)
        return held

    async def _dial(self, endpoint: str) -> TamperedStream:
        ours, theirs = memory_stream_pair()
        self.prefill.streams.append(ours)
        self._running.append(self._tasks.create_task(self.prefill.front.serve(theirs)))
        return TamperedStream(
            ours,
            lambda frame: self.to_prefill(frame),
            lambda frame: self.to_decode(frame),
            lambda frame: 0.0,
        )


def failure_of(answer: Answer) -> str:
    """The reason for which an answer has ended early, or empty."""
    if answer.refused:
        return str(answer.refused[0].failure.reason)
    return str(answer.finishes[0].failure.reason)


@asynccontextmanager
async def pair(decode: Worker, prefill: Worker) -> AsyncIterator[Pair]:
    """Both serve while entered; their cores live on."""
    async with asyncio.TaskGroup() as tasks:
        joined = Pair(decode, prefill, tasks)
        await joined.connect()
        yield joined
        await joined.end()


def without_blocks(frame: Any) -> list[Any]:
    return [] if frame.HasField("blocks") else [frame]


class OurCases:
    """The same cases as `StockCases`, in the same order."""

    def __init__(self, prompts: list[list[int]]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._prompts = prompts
        self._seen: list[handoff_pb2.DecodeFrame] = []

    async def run(self) -> dict[str, Outcome]:
        async with AsyncExitStack() as undo:
            decode, wide, prefill, other = await self._workers(undo)
            async with pair(wide, prefill) as mixed:
                self.outcomes["sizes"] = await mixed.outcome(self._prompts[1])
            async with pair(decode, prefill) as joined:
                await self._with_a_living_peer(joined)
                await self._with_a_lost_peer(joined, other)
        return self.outcomes

    async def _workers(self, undo: AsyncExitStack) -> list[Worker]:
        """Loaded side by side."""
        wanted = (
            (DECODE, "decode-1", 32),
            (DECODE, "decode-2", 64),
            (PREFILL, "prefill-1", 32),
            (PREFILL, "prefill-1", 32),
        )
        async with asyncio.TaskGroup() as tasks:
            loading = [tasks.create_task(start_worker(*each)) for each in wanted]
        for each in loading:
            undo.push_async_callback(each.result().client.close)
        return [each.result() for each in loading]

    async def _with_a_living_peer(self, joined: Pair) -> None:
        outcomes, prompts = self.outcomes, self._prompts
        joined.to_prefill = self._record
        outcomes["none"] = await joined.outcome(prompts[0])
        joined.to_prefill = self._name_those_of_others
        outcomes["foreign"] = await joined.outcome(prompts[3])
        joined.to_prefill = self._repeat_old_ones
        outcomes["replayed"] = await joined.outcome(prompts[4])
        joined.to_prefill = without_capability
        outcomes["parameter"] = await joined.outcome(prompts[0])
        joined.to_prefill, joined.to_decode = pass_on, without_blocks
        outcomes["never"] = await joined.outcome(prompts[0])
        joined.to_decode = pass_on

    async def _with_a_lost_peer(self, joined: Pair, other: Worker) -> None:
        outcomes, prompts = self.outcomes, self._prompts
        joined.prefill.signal(signal.SIGSTOP)
        outcomes["hung"] = await joined.outcome(prompts[5])
        joined.prefill.signal(signal.SIGCONT)
        joined.to_decode = lambda frame: self._kill_before_blocks(joined, frame)
        outcomes["killed"] = await joined.outcome(prompts[6])
        joined.to_decode = pass_on
        await joined.replace_prefill(other)
        outcomes["restarted"] = await joined.outcome(prompts[7])

    def _record(self, frame: handoff_pb2.DecodeFrame) -> list[handoff_pb2.DecodeFrame]:
        self._seen.append(frame)
        return [frame]

    def _name_those_of_others(
        self, frame: handoff_pb2.DecodeFrame
    ) -> list[handoff_pb2.DecodeFrame]:
        """Beside each request, ends of transfers that are not the sender's."""
        if not frame.HasField("prefill"):
            return [frame]
        ending: Any = {"xfer_id": frame.prefill.xfer_id, "capability": b"x" * 16}
        done, abort = (handoff_pb2.DecodeFrame(**{name: ending}) for name in ("done", "abort"))
        return [frame, abort, done]

    def _repeat_old_ones(self, frame: handoff_pb2.DecodeFrame) -> list[handoff_pb2.DecodeFrame]:
        """Before each request, all frames of an earlier handoff."""
        old = [each for each in self._seen if not each.HasField("hello")]
        return [*old, frame] if frame.HasField("prefill") else [frame]

    def _kill_before_blocks(self, joined: Pair, frame: Any) -> list[Any]:
        if frame.HasField("blocks"):
            joined.prefill.signal(signal.SIGKILL)
            return []
        return [frame]


def without_capability(frame: handoff_pb2.DecodeFrame) -> list[handoff_pb2.DecodeFrame]:
    if frame.HasField("prefill"):
        frame.prefill.capability = b""
    return [frame]
