"""The part of a worker's front that both roles share, around a scripted core."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager

import pytest

from baton.engine.protocol.client import CoreDied
from baton.runtime import instruments
from baton.runtime.audit import LOOK_EVERY_S
from baton.system.violation import Violation
from baton.testing.virtual_clock import VirtualClock, virtual
from baton.wire.failures import Unavailable
from baton.wire.v1 import router_pb2
from baton.worker.core_watch import TICK_S
from baton.worker.front import WorkerFront
from tests.unit.worker.scripted_core import ScriptedCore, scripted_parts


class OneRequestFront(WorkerFront):
    """A front with one open request, which ends when `idle` is set."""

    def __init__(self, core: ScriptedCore, clock: VirtualClock) -> None:
        super().__init__(scripted_parts(core, clock, router_pb2.WORKER_ROLE_DECODE))
        self.calls: list[str] = []
        self.idle = asyncio.Event()
        self.found: list[Violation] = []

    def violations(self) -> Iterator[Violation]:
        yield from self.found

    def _background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        return (self._background(),)

    async def _background(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("background ended")

    def _core_stalled(self) -> None:
        self.calls.append("stalled")

    def _core_died(self, suspect_request_ids: tuple[str, ...]) -> None:
        self.calls.append(f"died with {','.join(suspect_request_ids)}")

    async def _wait_until_idle(self) -> None:
        await self.idle.wait()

    def _drain_cut_short(self) -> None:
        self.calls.append("cut short")

    async def _finish_streams(self, reason: str) -> None:
        self.calls.append(f"bye: {reason}")


@asynccontextmanager
async def running(core: ScriptedCore) -> AsyncIterator[OneRequestFront]:
    clock: VirtualClock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
    front = OneRequestFront(core, clock)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(front.run())
        yield front
        task.cancel()


@virtual
async def test_a_drain_waits_for_open_requests_and_then_says_bye() -> None:
    async with running(ScriptedCore()) as front:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(front.drain(30.0))
            await asyncio.sleep(1.0)
            assert front.calls == []
            with pytest.raises(Unavailable, match="draining"):
                front.check_admission()
            front.idle.set()
        assert front.calls == ["bye: draining"]


@virtual
async def test_a_drain_is_cut_short_at_its_limit() -> None:
    async with running(ScriptedCore()) as front:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await front.drain(3.0)
        assert loop.time() - began_s == pytest.approx(3.0)
        assert front.calls == ["cut short", "bye: draining"]


@virtual
async def test_a_stall_fails_open_requests_once_and_admits_none_until_the_core_moves() -> None:
    core = ScriptedCore()
    async with running(core) as front:
        front.check_admission()
        core.is_stuck = True
        await asyncio.sleep(3.0)
        with pytest.raises(Unavailable, match="has not moved"):
            front.check_admission()
        core.is_stuck = False
        await asyncio.sleep(2 * TICK_S)
        front.check_admission()
        assert front.calls == ["stalled"]


@virtual
async def test_a_dead_core_fails_open_requests_before_the_background_tasks_end() -> None:
    core = ScriptedCore()
    front: OneRequestFront | None = None
    with pytest.raises(BaseExceptionGroup) as raised:
        async with running(core) as front:
            await asyncio.sleep(TICK_S)
            core.die("r1", "r2")
            await asyncio.Event().wait()
    assert raised.value.subgroup(CoreDied) is not None
    assert front is not None
    assert front.calls == ["died with r1,r2", "bye: core died", "background ended"]


@virtual
async def test_violations_of_the_core_and_of_the_front_are_counted() -> None:
    core = ScriptedCore()
    count = instruments.AUDIT_VIOLATIONS.labels
    async with running(core) as front:
        before = [count(check)._value.get() for check in ("of_core", "of_front")]
        core.tell(violations=[Violation("of_core", "r1", "")])
        front.found = [Violation("of_front", "r2", "")]
        await asyncio.sleep(2.5 * LOOK_EVERY_S)
        after = [count(check)._value.get() for check in ("of_core", "of_front")]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1]
