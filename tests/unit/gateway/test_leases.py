"""Tests of renewals over a stream that ends: another replica answers, or nobody does."""

import asyncio
import random
from typing import Any

from baton.runtime.shared_stream import FrameStream
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Unavailable
from baton.wire.v1 import quota_pb2
from services.gateway.leases import Lease, LeaseKeeper

HELD = quota_pb2.LeaseState.STATE_HELD


class Replicas:
    """A quota service whose renewal streams the test reads and answers, one after the other."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.is_down = False
        self.opened = asyncio.Event()
        self.num_tries = 0

    async def open_renewals(self) -> FrameStream[Any, Any]:
        self.num_tries += 1
        if self.is_down:
            raise Unavailable("no quota service answers")
        near, far = memory_stream_pair()
        self.streams.append(far)
        self.opened.set()
        return near

    async def next_stream(self) -> Any:
        await self.opened.wait()
        self.opened.clear()
        return self.streams[-1]

    async def answer(self, granted: int | None = None) -> quota_pb2.RenewRequest:
        """Read one request and grant what it wants, or `granted`."""
        request = await self.streams[-1].read()
        response = quota_pb2.RenewResponse()
        for lease in request.leases:
            wanted = max(lease.wanted_output_tokens, lease.granted_output_tokens)
            response.leases.add(
                request_id=lease.request_id,
                granted_output_tokens=wanted if granted is None else granted,
                state=HELD,
            )
        await self.streams[-1].write(response)
        return request


def lease_of(request_id: str = "r1", **fields: Any) -> Lease:
    return Lease(request_id, "acme", "k", "demo", num_prompt_tokens=3, num_granted=100, **fields)


def keeping(scenario: Any) -> None:
    async def main() -> None:
        quota = Replicas()
        keeper = LeaseKeeper(quota, random.Random(3))  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(keeper.run())
            await scenario(quota, keeper)
            running.cancel()

    run_virtual(main())


def test_an_ask_that_meets_a_leaving_replica_is_answered_by_the_next() -> None:
    async def scenario(quota: Replicas, keeper: LeaseKeeper) -> None:
        lease = lease_of(hard_budget=True)
        keeper.open(lease)
        await quota.next_stream()
        await quota.answer()
        await quota.streams[0].close()
        keeper.ask(lease, 500)
        await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert (lease.num_granted, lease.refused) == (500, False)

    keeping(scenario)


def test_an_ask_that_was_lost_with_its_stream_is_asked_again() -> None:
    async def scenario(quota: Replicas, keeper: LeaseKeeper) -> None:
        lease = lease_of(hard_budget=True)
        keeper.open(lease)
        first = await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        keeper.ask(lease, 500)
        assert (await first.read()).leases[0].wanted_output_tokens == 500
        await first.close()
        await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        assert lease.num_granted == 500

    keeping(scenario)


def test_while_no_replica_answers_soft_tenants_go_on_and_hard_budgets_end() -> None:
    async def scenario(quota: Replicas, keeper: LeaseKeeper) -> None:
        soft, hard = lease_of("soft"), lease_of("hard", hard_budget=True)
        for lease in (soft, hard):
            keeper.open(lease)
        first = await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        for lease in (soft, hard):
            keeper.ask(lease, 500)
        await first.read()
        quota.is_down = True
        await first.close()
        await asyncio.sleep(1)
        assert (soft.num_granted, hard.refused) == (500, True)
        keeper.ask(soft, 900)
        assert soft.num_granted == 900

    keeping(scenario)


def test_a_quota_service_that_is_away_is_tried_with_growing_pauses() -> None:
    async def scenario(quota: Replicas, keeper: LeaseKeeper) -> None:
        quota.is_down = True
        await asyncio.sleep(60)
        assert 20 <= quota.num_tries <= 60

    keeping(scenario)
