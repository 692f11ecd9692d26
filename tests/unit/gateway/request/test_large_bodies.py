"""Large bodies are parsed one at a time, and no tenant fills the line alone."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from baton.wire.failures import Overloaded
from services.gateway.request.large_bodies import (
    MAX_LINE_BYTES,
    MAX_LINE_BYTES_OF_TENANT,
    LargeBodies,
)

T = TypeVar("T")
MAX_BODY_BYTES = 8 * 1024 * 1024
NUM_OF_TENANT = MAX_LINE_BYTES_OF_TENANT // MAX_BODY_BYTES


class Line:
    """Works that wait until they may go on."""

    def __init__(self) -> None:
        self.bodies = LargeBodies(self.in_thread)
        self.may_go_on = asyncio.Event()
        self.num_at_once = self.most_at_once = 0

    async def in_thread(self, work: Callable[[], T], /) -> T:
        """A thread goes on when its request is over."""
        return await asyncio.shield(asyncio.ensure_future(self._run(work)))

    async def _run(self, work: Callable[[], T]) -> T:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await self.may_go_on.wait()
        self.num_at_once -= 1
        return work()

    async def enter(
        self, tenant: str, num: int, num_bytes: int = MAX_BODY_BYTES
    ) -> list[asyncio.Task[str]]:
        tasks = [
            asyncio.ensure_future(self.bodies.parse(tenant, num_bytes, lambda: tenant))
            for _ in range(num)
        ]
        await asyncio.sleep(0)
        return tasks


def test_large_bodies_are_parsed_one_after_the_other() -> None:
    async def scenario() -> None:
        line = Line()
        tasks = await line.enter("a", 2) + await line.enter("b", 1)
        line.may_go_on.set()
        assert await asyncio.gather(*tasks) == ["a", "a", "b"]
        assert line.most_at_once == 1

    asyncio.run(scenario())


def test_a_client_that_leaves_does_not_let_a_second_body_be_parsed_beside_its_own() -> None:
    async def scenario() -> None:
        line = Line()
        tasks = await line.enter("a", NUM_OF_TENANT)
        tasks[0].cancel()
        await asyncio.gather(*tasks[:1], return_exceptions=True)
        await asyncio.sleep(0)
        assert line.num_at_once == 1
        with pytest.raises(Overloaded):
            await line.bodies.parse("a", 1, str)
        line.may_go_on.set()
        assert await asyncio.gather(*tasks[1:]) == ["a"] * (NUM_OF_TENANT - 1)
        assert line.most_at_once == 1
        assert await line.bodies.parse("a", 1, lambda: "again") == "again"

    asyncio.run(scenario())


def test_a_tenant_with_many_large_bodies_is_refused_and_others_are_not() -> None:
    async def scenario() -> None:
        line = Line()
        tasks = await line.enter("a", NUM_OF_TENANT)
        with pytest.raises(Overloaded):
            await line.bodies.parse("a", 1, str)
        tasks += await line.enter("b", 1)
        tasks.pop(1).cancel()
        await asyncio.sleep(0)
        tasks += await line.enter("a", 1)
        line.may_go_on.set()
        assert len(await asyncio.gather(*tasks)) == NUM_OF_TENANT + 1

    asyncio.run(scenario())


def test_many_long_conversations_of_one_tenant_are_all_parsed() -> None:
    async def scenario() -> None:
        line = Line()
        tasks = await line.enter("a", 32, num_bytes=400_000)
        line.may_go_on.set()
        assert len(await asyncio.gather(*tasks)) == 32

    asyncio.run(scenario())


def test_the_line_of_all_tenants_is_bounded() -> None:
    async def scenario() -> None:
        line = Line()
        tasks = [
            await line.enter(f"tenant {n}", 1) for n in range(MAX_LINE_BYTES // MAX_BODY_BYTES)
        ]
        with pytest.raises(Overloaded):
            await line.bodies.parse("one more", 1, str)
        line.may_go_on.set()
        await asyncio.gather(*(task for each in tasks for task in each))
        assert await line.bodies.parse("one more", 1, lambda: 1) == 1

    asyncio.run(scenario())
