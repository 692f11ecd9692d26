"""Bodies have room before they are read; large ones are parsed one at a time, tenants in turn."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import LimitExceeded, Overloaded
from services.gateway.openai.generation import EndpointName, GenerationRequest, PlainText
from services.gateway.request.room import (
    MAX_WAITING_OF_TENANT,
    WAIT_S,
    Bodies,
    ByteLimits,
    Room,
)


class Gateway:
    """100 bytes for bodies, 40 for each tenant; parsing waits until it may go on."""

    def __init__(self, limits: ByteLimits | None = None) -> None:
        self.bodies = Bodies(self, limits or ByteLimits(100, 40))
        self.may_go_on = asyncio.Event()
        self.num_at_once = self.most_at_once = 0
        self.parsed: list[str] = []

    async def parse(self, endpoint: EndpointName, body: bytes) -> GenerationRequest:
        """Parse `body`, which names a tenant."""
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await self.may_go_on.wait()
        self.num_at_once -= 1
        self.parsed.append(body.decode())
        return GenerationRequest(endpoint, "m", PlainText("hi"))

    async def hold(self, tenant: str, num_bytes: int) -> AsyncExitStack:
        """Hold room until the stack is closed."""
        stack = AsyncExitStack()
        await stack.enter_async_context(self.bodies.room(tenant, num_bytes))
        return stack

    async def send(self, tenant: str, num: int) -> list[asyncio.Task[GenerationRequest]]:
        tasks = [
            asyncio.ensure_future(self.bodies.parse(tenant, "completions", tenant.encode()))
            for _ in range(num)
        ]
        await asyncio.sleep(0)
        return tasks


def test_large_bodies_are_parsed_one_after_the_other_and_tenants_take_turns() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        tasks = await gateway.send("a", 3) + await gateway.send("b", 1)
        gateway.may_go_on.set()
        await asyncio.gather(*tasks)
        assert gateway.parsed == ["a", "b", "a", "a"]
        assert gateway.most_at_once == 1

    run_virtual(scenario())


def test_a_client_that_leaves_does_not_let_a_second_body_be_parsed_beside_its_own() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        tasks = await gateway.send("a", 2) + await gateway.send("b", 2)
        tasks[0].cancel()
        tasks[3].cancel()
        await asyncio.gather(tasks[0], tasks[3], return_exceptions=True)
        await asyncio.sleep(0)
        assert gateway.num_at_once == 1
        gateway.may_go_on.set()
        await asyncio.gather(*tasks[1:3])
        assert gateway.most_at_once == 1
        assert sorted(gateway.parsed) == ["a", "a", "b"]

    run_virtual(scenario())


def test_a_tenant_that_has_its_share_waits_and_then_is_refused_and_others_are_not() -> None:
    async def scenario() -> None:
        gateway, clock = Gateway(), asyncio.get_running_loop()
        first = await gateway.hold("a", 40)
        started_s = clock.time()
        with pytest.raises(LimitExceeded) as caught:
            await gateway.hold("a", 1)
        assert clock.time() - started_s == pytest.approx(WAIT_S)
        assert caught.value.reason == "share_exceeded"
        waiting = asyncio.ensure_future(gateway.hold("a", 40))
        await asyncio.sleep(0)
        async with await gateway.hold("b", 40):
            assert clock.time() - started_s == pytest.approx(WAIT_S)
        await first.aclose()
        await (await waiting).aclose()

    run_virtual(scenario())


def test_the_bytes_of_all_tenants_are_bounded_and_those_in_line_come_first() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        held = [await gateway.hold(tenant, 40) for tenant in "ab"]
        large = asyncio.ensure_future(gateway.hold("c", 40))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(gateway.hold("d", 1))
        await asyncio.sleep(WAIT_S / 2)
        assert not small.done()
        await held[0].aclose()
        held[:1] = [await large, await small]
        with pytest.raises(Overloaded):
            await gateway.hold("e", 40)
        for each in held:
            await each.aclose()
        await (await gateway.hold("e", 40)).aclose()

    run_virtual(scenario())


def test_a_body_without_a_length_takes_room_as_it_comes_and_never_waits_for_more() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        async with gateway.bodies.room("a", 0) as room:
            assert isinstance(room, Room)
            room.need(30)
            room.need(40)
            with pytest.raises(LimitExceeded):
                room.need(41)
        await (await gateway.hold("a", 40)).aclose()

    run_virtual(scenario())


def test_the_line_of_a_tenant_is_bounded() -> None:
    async def scenario() -> None:
        gateway, clock = Gateway(), asyncio.get_running_loop()
        async with await gateway.hold("a", 40):
            waiting = [
                asyncio.ensure_future(gateway.hold("a", 1)) for _ in range(MAX_WAITING_OF_TENANT)
            ]
            await asyncio.sleep(0)
            started_s = clock.time()
            with pytest.raises(LimitExceeded):
                await gateway.hold("a", 1)
            assert clock.time() == started_s
        for task in waiting:
            await (await task).aclose()

    run_virtual(scenario())


@pytest.mark.parametrize("is_admitted", [False, True])
def test_a_client_that_leaves_the_line_takes_no_room_along(*, is_admitted: bool) -> None:
    async def scenario() -> None:
        gateway = Gateway()
        first = await gateway.hold("a", 40)
        leaving = asyncio.ensure_future(gateway.hold("a", 40))
        await asyncio.sleep(0)
        if is_admitted:
            await first.aclose()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await first.aclose()
        await (await gateway.hold("a", 40)).aclose()

    run_virtual(scenario())


def test_many_long_conversations_of_one_tenant_are_all_parsed() -> None:
    async def scenario() -> None:
        gateway = Gateway(ByteLimits())
        held = [await gateway.hold("a", 400_000) for _ in range(32)]
        gateway.may_go_on.set()
        await asyncio.gather(*await gateway.send("a", 32))
        assert len(gateway.parsed) == len(held)

    run_virtual(scenario())
