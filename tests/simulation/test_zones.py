"""A fleet in two zones with a slow link between them: pairs within a zone, overflow, and a zone
that is lost and comes back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.pick_reasons import is_far, overflow_of
from baton.wire.v1 import router_pb2
from tests.simulation.fleet import Answer, Fleet, running_fleet

# One worker of each role and one router in each zone; the gateway and quota are in the first one.
ZONES = {"prefill-0": "a", "decode-0": "a", "router-0": "a", "gateway": "a"} | {
    "prefill-1": "b",
    "decode-1": "b",
    "router-1": "b",
}
NUM_SLOTS = 4


@asynccontextmanager
async def two_zones(clock: VirtualClock, folder: Path) -> AsyncIterator[Fleet]:
    async with running_fleet(
        5,
        clock,
        folder,
        num_prefill=2,
        num_decode=2,
        num_routers=2,
        num_slots=NUM_SLOTS,
        zone_of=lambda name: ZONES.get(name, ""),
    ) as fleet:
        yield fleet


async def ask(fleet: Fleet, request_id: str, max_tokens: int = 8) -> None:
    """One request, whose answer is what it must be."""
    answer = Answer()
    fields = {"max_tokens": max_tokens, "seed": 1, "request_id": request_id}
    await fleet.ask(f"question {request_id}", answer, **fields)
    assert answer.texts[0] == fleet.expected(request_id, max_tokens, 1)


def picks(fleet: Fleet) -> list[router_pb2.PickReasons]:
    """The reasons of all picks since the last call."""
    found = [pick.reasons for router in fleet.routers.values() for pick in router.picks]
    for router in fleet.routers.values():
        router.picks.clear()
    return found


def zones(reasons: list[router_pb2.PickReasons]) -> set[tuple[str, str]]:
    """The zones of the chosen pairs, that of the prefill worker first."""
    chosen = [each.choices[0] for each in reasons]
    return {(choice.prefill_zone, choice.decode_zone) for choice in chosen}


def test_pairs_are_within_a_zone_until_it_is_full_and_an_overflow_has_its_reason(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        async with two_zones(clock, tmp_path) as fleet:
            await asyncio.gather(*(ask(fleet, f"quiet-{number}") for number in range(6)))
            assert zones(picks(fleet)) == {("a", "a"), ("b", "b")}
            fleet.kill_process("sim:2")  # zone b can only decode
            await asyncio.sleep(2.5)
            for number in range(3):
                await ask(fleet, f"alone-{number}")
            assert zones(picks(fleet)) == {("a", "a")}
            await asyncio.gather(
                *(ask(fleet, f"long-{number}", 60) for number in range(2 * NUM_SLOTS))
            )
            far = [each for each in picks(fleet) if is_far(each.choices[0])]
            assert len(far) >= NUM_SLOTS
            assert zones(far) == {("a", "b")}
            assert all("prefill in zone a, decode in b" in overflow_of(each) for each in far)
            await ask(fleet, "quiet-again")
            assert zones(picks(fleet)) == {("a", "a")}

    run_virtual(scenario(), clock)


def test_the_loss_of_a_zone_costs_no_request_and_it_is_used_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()

    async def client(fleet: Fleet, name: str, until_s: float) -> None:
        for number in count():
            if clock.now() >= until_s:
                return
            await ask(fleet, f"{name}-{number}", 20)
            await asyncio.sleep(0.1)

    async def scenario() -> None:
        async with two_zones(clock, tmp_path) as fleet, asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(client(fleet, f"c{number}", clock.now() + 3.2))
            await asyncio.sleep(0.55)
            assert zones(picks(fleet)) == {("a", "a"), ("b", "b")}
            for endpoint in ("sim:2", "sim:4"):
                fleet.kill_process(endpoint)
            fleet.kill_router("router-1")
            await asyncio.sleep(0.3)
            picks(fleet)
            await asyncio.sleep(0.5)
            assert zones(picks(fleet)) == {("a", "a")}
            fleet.start_worker("prefill-1", "sim:2")
            fleet.start_worker("decode-1", "sim:4")
            fleet.start_router("router-1")
            await asyncio.sleep(1)
            picks(fleet)
            await asyncio.sleep(0.5)
            assert zones(picks(fleet)) == {("a", "a"), ("b", "b")}

    run_virtual(scenario(), clock)
