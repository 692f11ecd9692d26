"""A core that does nothing by itself: the test says what it tells, and reads what it is sent."""

import asyncio
import random
from typing import TypeVar

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import Command, EngineInfo, EngineLoad, Probe, StepEvents
from baton.engine.protocol.progress_page import CoreProgress
from baton.system.clock import Clock
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import router_pb2
from baton.worker.deps import WorkerDeps
from baton.worker.program import make_parts

BLOCK_SIZE = 4
NUM_BLOCKS = 16
SPEC = KVSpec.of_layers(BLOCK_SIZE, [(1, 4, 2, "float32")] * 2)
MODEL_FP = "fake-model"
LOAD = EngineLoad(0, 0, NUM_BLOCKS, 0, 0, 0.0, 0.0)

C = TypeVar("C")


class ScriptedCore:
    """An EngineClient whose events are those that `tell` and `die` bring."""

    def __init__(self) -> None:
        self.info = EngineInfo(
            MODEL_FP,
            "fake",
            "1",
            SPEC,
            NUM_BLOCKS,
            max_model_len=48,
            max_num_seqs=8,
            vocab_size=1000,
            eos_token_ids=[999],
        )
        self.pool = memoryview(bytearray(NUM_BLOCKS * SPEC.row_bytes))
        self.pool_fd: int | None = None
        # Every command, the oldest first.
        self.sent: list[Command] = []
        # It stands still in a step that should take 10 ms.
        self.is_stuck = False
        self._num_read = 0
        self._arrived = asyncio.Event()
        self._events: asyncio.Queue[StepEvents | CoreDied] = asyncio.Queue()
        self._step = 0

    @property
    def num_commands_sent(self) -> int:
        return len(self.sent)

    def send(self, command: Command) -> None:
        self.sent.append(command)
        self._arrived.set()

    async def events(self) -> StepEvents:
        events = await self._events.get()
        if isinstance(events, CoreDied):
            raise events
        return events

    def progress(self) -> CoreProgress:
        return CoreProgress(self._step, self.is_stuck, (), self.num_commands_sent, 0.01)

    def starved_s(self, elapsed_s: float) -> float:
        return 0.0

    def kill(self) -> None: ...

    async def close(self) -> None: ...

    def kinds(self) -> list[str]:
        """The commands by the names of their types, probes left out."""
        return [type(each).__name__ for each in self.sent if not isinstance(each, Probe)]

    def tell(self, load: EngineLoad = LOAD, **news: object) -> None:
        """One step; `news` are fields of StepEvents."""
        self._step += 1
        self._events.put_nowait(StepEvents(self._step, load, **news))  # type: ignore[arg-type]

    async def step(self, **news: object) -> None:
        """One step, and everything that follows from it at once."""
        self.tell(**news)
        await turns()

    def tell_token(self, seq_id: int, token_id: int, index: int = 0, **news: object) -> None:
        """One step with one token."""
        columns = {"token_seq_ids": [seq_id], "token_ids": [token_id], "token_indexes": [index]}
        self.tell(**columns, **news)

    def die(self, *suspect_request_ids: str) -> None:
        self._events.put_nowait(CoreDied("killed", suspect_request_ids))

    def read_commands(self) -> list[Command]:
        """The commands since the last read."""
        commands = self.sent[self._num_read :]
        self._num_read = len(self.sent)
        return commands

    async def next(self, kind: type[C]) -> C:
        """Wait for the next command of this kind; those before it count as read."""
        while True:
            while self._num_read < len(self.sent):
                command = self.sent[self._num_read]
                self._num_read += 1
                if isinstance(command, kind):
                    return command
            self._arrived.clear()
            await self._arrived.wait()


def scripted_parts(
    core: ScriptedCore, clock: Clock, role: router_pb2.WorkerRole, worker_id: str = "w1"
) -> WorkerDeps:
    """The parts of a front around this core; blocks travel inside frames."""
    random_bytes = random.Random(worker_id).randbytes
    return make_parts(core, worker_id=worker_id, role=role, clock=clock, random_bytes=random_bytes)


def make_worker(worker_id: str, role: router_pb2.WorkerRole) -> tuple[ScriptedCore, WorkerDeps]:
    """A core and the parts of a front around it. Must run on a VirtualLoop."""
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
    core = ScriptedCore()
    return core, scripted_parts(core, clock, role, worker_id)


async def turns(number: int = 20) -> None:
    """Let everything run that is ready to."""
    for _ in range(number):
        await asyncio.sleep(0)
