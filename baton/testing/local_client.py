"""An EngineClient without a core process: the engine runs inside the front's event loop.

It is for simulations of whole fleets on a virtual clock: a step computes at once and then takes
`step_duration`, from the end of the one before where that runs still. The reader of `events` drives
the engine; without a reader nothing moves.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import Command, EngineInfo, StepEvents
from baton.engine.protocol.progress_page import CoreProgress
from baton.engine.step.engine import Engine
from baton.system.clock import Clock
from baton.system.memory_file import open_sealed, resize_and_map

StepDuration = Callable[[StepBatch], float]  # seconds


class LocalEngineClient:
    """Steps an Engine on the running loop's time, with which `clock` must agree.

    It has 14 attributes because it stands for a whole core process: its pool, its pipe, its fault
    injection and the step that runs.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        step_duration: StepDuration,
        pool_file: int | None = None,
    ) -> None:
        """`pool_file` is an empty memory file for the pool; without it the pool is private."""
        self.info: EngineInfo = engine.info
        row_bytes = self.info.kv_spec.row_bytes
        num_bytes = engine.num_pool_rows * row_bytes
        whole = memoryview(
            bytearray(num_bytes) if pool_file is None else resize_and_map(pool_file, num_bytes)
        )
        self.pool_fd = None if pool_file is None else open_sealed(pool_file)
        engine.bind_pool(whole)
        self.pool = whole[: (self.info.num_rows or self.info.num_blocks) * row_bytes]
        self._engine = engine
        self._clock = clock
        self._step_duration = step_duration
        self._commands: list[Command] = []
        self._num_commands_sent = 0
        self._wake = asyncio.Event()
        self._death = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        # The steps that have begun: their results, and the times of their ends.
        self._running: deque[tuple[StepResult, float]] = deque()
        # What they reported before their ends.
        self._early: deque[StepEvents] = deque()
        self._suspects: tuple[str, ...] = ()

    @property
    def num_commands_sent(self) -> int:
        return self._num_commands_sent

    def send(self, command: Command) -> None:
        self._commands.append(command)
        self._num_commands_sent += 1
        self._wake.set()

    async def events(self) -> StepEvents:
        if (earlier := self._engine.next_events()) is not None:
            return earlier
        while True:
            if not self._running:
                await self._wait_for_work()
            while self._engine.may_begin and self._begin_step():
                if answers := self._engine.take_answers():
                    return answers
            if self._early:
                return self._early.popleft()
            await self._sleep_until_step_ends()
            result = self._running.popleft()[0] if self._running else None
            if (events := self._engine.finish_step(result)) is not None:
                return events

    def progress(self) -> CoreProgress:
        return CoreProgress(
            self._engine.step_index,
            bool(self._running),
            self._engine.batch_request_ids(),
            self._num_commands_sent - len(self._commands),
            self._engine.expected_step_s(),
        )

    def starved_s(self, elapsed_s: float) -> float:
        return 0.0

    def kill(self) -> None:
        self._suspects = self.progress().request_ids
        self._death.set()
        self._wake.set()
        self._resumed.set()

    async def close(self) -> None:
        self._death.set()
        self._wake.set()
        self._resumed.set()
        if self.pool_fd is not None:
            os.close(self.pool_fd)
            self.pool_fd = None

    def stop(self) -> None:
        """Fault injection: the core stands still, as after SIGSTOP, until `go_on` or its end."""
        self._resumed.clear()

    def go_on(self) -> None:
        """End `stop`, as SIGCONT does."""
        self._resumed.set()

    def _begin_step(self) -> bool:
        """Begin a step, if there is one to run now."""
        commands, self._commands = self._commands, []
        batch = self._engine.begin_step(commands)
        if batch is None:
            return False
        begins_at = self._running[-1][1] if self._running else self._clock.now()
        # Layers are told of as early as they can be: when the step begins.
        batch.layer_marks = self._engine.layer_marks(batch, self._early.append)
        result = self._engine.runner.run(batch)
        self._running.append((result, begins_at + self._step_duration(batch)))
        return True

    async def _sleep_until_step_ends(self) -> None:
        ends_at = self._running[0][1] if self._running else 0.0
        remaining_s = ends_at - self._clock.now()
        if remaining_s > 0:
            try:
                async with asyncio.timeout(remaining_s):
                    await self._death.wait()
            except TimeoutError:
                pass
        await self._resumed.wait()
        self._check_alive()

    async def _wait_for_work(self) -> None:
        await self._resumed.wait()
        self._check_alive()
        self._wake.clear()
        if self._commands or self._engine.has_work:
            return
        deadline = self._engine.next_deadline()
        timeout_s = None if deadline is None else max(0.0, deadline - self._clock.now())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        await self._resumed.wait()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._death.is_set():
            raise CoreDied("core is gone", self._suspects)
