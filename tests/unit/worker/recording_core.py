"""A core that does what a test says: for fronts, which know it through EngineClient alone."""

import asyncio
import random
from typing import Any

from baton.engine.protocol.messages import Command, EngineInfo, EngineLoad, Probe, StepEvents
from baton.engine.protocol.progress_page import CoreProgress
from baton.engine.step.engine import Engine, EngineConfig
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock
from baton.worker.deps import WorkerDeps
from baton.worker.program import make_parts


class RecordingCore:
    """An EngineClient that keeps what it is sent and tells what the test tells it to."""

    def __init__(self, clock: VirtualClock) -> None:
        engine = Engine(EngineConfig("fake-model", "fake", "1", 16), FakeRunner(), clock)
        self.info: EngineInfo = engine.info
        self.pool = memoryview(bytearray(16 * self.info.kv_spec.row_bytes))
        self.pool_fd = None
        self.sent: list[Command] = []
        self._events: asyncio.Queue[StepEvents] = asyncio.Queue()

    @property
    def num_commands_sent(self) -> int:
        return len(self.sent)

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def kinds(self) -> list[str]:
        """What it was sent, probes left out."""
        return [type(each).__name__ for each in self.sent if not isinstance(each, Probe)]

    async def tell(self, **columns: Any) -> None:
        """One step of the core, and everything that follows at once."""
        self._events.put_nowait(StepEvents(1, EngineLoad(0, 0, 0, 0, 0, 0.0, 0.0), **columns))
        await turns()

    async def events(self) -> StepEvents:
        return await self._events.get()

    def progress(self) -> CoreProgress:
        return CoreProgress(0, False, (), len(self.sent), 0.0)

    def kill(self) -> None:
        raise AssertionError("it never hangs")

    async def close(self) -> None:
        """Nothing is held."""


def make_worker(name: str, role: Any) -> tuple[RecordingCore, WorkerDeps]:
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
    core = RecordingCore(clock)
    random_bytes = random.Random(name).randbytes
    return core, make_parts(core, worker_id=name, role=role, clock=clock, random_bytes=random_bytes)


async def turns(number: int = 20) -> None:
    """Let everything run that is ready to."""
    for _ in range(number):
        await asyncio.sleep(0)
