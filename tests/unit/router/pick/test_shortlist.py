"""A pick in a large pool looks at a few workers only, and chooses as if it had looked at all."""

import asyncio
from random import Random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError
from baton.wire.pick_reasons import text_of
from baton.wire.v1.worker_pb2 import FarHandoff
from services.router.pick import selector
from services.router.router_core import RouterCore
from services.router.settings import Settings
from tests.unit.router.conftest import RouterInMemory

ALL = 10**9


class FirstOfEqual(Random):
    """No chance: of equal workers the first one."""

    def choice(self, seq):
        return seq[0]

    def sample(self, population, k, *, counts=None):
        return population[:k]


def picks_of(seed: int) -> list[tuple[str, ...]]:
    """Build a random fleet, send it requests, and let it report; returns what was picked."""
    clock, random = VirtualClock(), Random(seed)
    fleet = RouterInMemory(clock)
    settings = Settings(disaggregate=random.choice(["always", "auto"]))
    fleet.core = RouterCore(settings, clock, FirstOfEqual())
    return run_virtual(_picks_of(fleet, random), clock)


async def _picks_of(fleet: RouterInMemory, random: Random) -> list[tuple[str, ...]]:
    num_decodes, num_prefills = random.randrange(17, 40), random.randrange(0, 40)
    zones = (("",), ("a", "b"), ("a", "b", ""))[num_decodes % 3]
    in_zone = [zones[n % len(zones)] for n in range(40)]
    workers = [fleet.decode(f"d{n}", zone=in_zone[n]) for n in range(num_decodes)]
    workers += [fleet.prefill(f"p{n}", zone=in_zone[n]) for n in range(num_prefills)]
    is_crowded = random.random() < 0.3
    for worker in workers:
        report(worker, random, is_crowded)
        worker.stored(*range(random.choice([0, 0, 2, 30])))
        if random.random() < 0.1:
            worker.send(draining=True)
    found: list[tuple[str, ...]] = []
    for number in range(25):
        await asyncio.sleep(random.choice([0.0, 0.03, 0.4]))
        for worker in random.sample(workers, 6):
            if random.random() < 0.05:
                fleet.core.lose(worker.endpoint)
                worker.start(boot_epoch=number + 2)
            report(worker, random, is_crowded)
        found.append(await one_pick(fleet, random, number, workers))
    return found


def report(worker, random: Random, is_crowded: bool) -> None:
    worker.load(
        num_running=random.choice([0, 0, 1, 2, 3]),
        num_waiting=random.choice([0, 1, 5]) if is_crowded else 0,
        num_blocks_free=random.randrange(0, 40) if is_crowded else random.randrange(30, 100),
        num_blocks_promised=random.choice([0, 0, 10]),
        num_queued_prefill_tokens=random.randrange(0, 3000),
        prefill_tokens_per_s=random.choice([0.0, random.uniform(500, 5000)]),
        decode_step_s=random.choice([0.0, random.uniform(0.01, 0.1)]),
        handoff_bytes_per_s=random.choice([0.0, random.uniform(1e5, 1e6)]),
        handoff_s=random.choice([0.0, random.uniform(0.001, 0.01)]),
        step_wait_s=random.choice([0.0, random.uniform(0.001, 0.2)]),
        chunk_tokens=random.choice([0, 64]),
        far_handoffs=[FarHandoff(zone="a", bytes_per_s=2e5)] if worker.seq % 2 else [],
    )


async def one_pick(fleet, random: Random, number: int, workers) -> tuple[str, ...]:
    num_tokens = random.choice([1, 40, 200, 900])
    hashes = [n.to_bytes(16, "big") for n in range(num_tokens // 16)]
    try:
        response = await fleet.pick(
            f"r{number}",
            timeout_s=0.2,
            block_hashes=b"".join(hashes),
            num_prompt_tokens=num_tokens,
            expected_output_tokens=random.randrange(1, 300),
            num_choices=random.choice([1, 1, 2]),
            local_prefill=random.random() < 0.1,
            exclude_worker_ids=[w.register.worker_id for w in random.sample(workers, 2)],
        )
    except BatonError as error:
        return (type(error).__name__,)
    winner = text_of(response.reasons).partition(";")[0]
    return response.decode.worker_id, response.prefill.worker_id, winner


@pytest.mark.parametrize("seed", range(40))
def test_the_pick_is_the_one_of_all_workers(seed: int, monkeypatch) -> None:
    short = picks_of(seed)
    monkeypatch.setattr(selector, "MAX_PLAIN", ALL)
    assert short == picks_of(seed)
    assert len(set(short)) > 1


def test_equal_workers_are_picked_by_chance(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        for number in range(100):
            fleet.decode(f"d{number}")
            fleet.prefill(f"p{number}")
        picked = [await fleet.pick(f"r{number}") for number in range(60)]
        assert len({each.decode.worker_id for each in picked}) == 60
        assert len({each.prefill.worker_id for each in picked}) == 60
        assert len({each.decode.worker_id[:2] for each in picked}) > 5

    run(scenario)


def test_the_reasons_count_the_workers_that_were_not_looked_at(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        for number in range(50):
            fleet.decode(f"d{number}")
        fleet.prefill()
        reasons = (await fleet.pick()).reasons
        assert text_of(reasons).endswith("; and 46 more")

    run(scenario)


def test_a_lease_that_expires_makes_room_in_a_large_pool(router, run) -> None:
    async def scenario() -> None:
        fleet = router(slot_lease_s=1.0)
        workers = [fleet.decode(f"d{number}") for number in range(20)]
        fleet.prefill()
        for worker in workers[1:]:
            worker.load(num_blocks_free=0)
        for number in range(4):
            assert (await fleet.pick(f"r{number}")).decode.worker_id == "d0"
        with pytest.raises(BatonError):
            await fleet.pick("r4", timeout_s=0.1)
        await asyncio.sleep(0.95)
        for worker in [*workers[:1], *workers[1:]]:
            worker.load(num_blocks_free=100 if worker is workers[0] else 0)
        assert (await fleet.pick("r5")).decode.worker_id == "d0"

    run(scenario)


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)
