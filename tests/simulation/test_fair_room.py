"""A quiet tenant beside a neighbour with 20 times its load, at 1.05 times the capacity."""

import os

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.unit.router.conftest import RouterInMemory
from tests.unit.router.queue.open_loop import OpenLoop

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
SIZES = {"first_token_s": 0.5, "service_s": 2.0, "spread": 0.5}
FLEETS = [(5, 16), (20, 4)] if IS_LONG else [(5, 16)]
NUM_SEEDS, SECONDS = (5, 60) if IS_LONG else (1, 40)
BEGIN = 15


@pytest.mark.parametrize(("num_workers", "slots"), FLEETS)
def test_the_first_token_of_a_quiet_tenant_comes_as_if_it_were_alone(
    num_workers: int, slots: int
) -> None:
    """Nor does that cost more than 2 % of what the fleet serves."""
    waits: list[float] = []
    shares: list[float] = []
    for seed in range(NUM_SEEDS):
        clock = VirtualClock()

        async def scenario(clock: VirtualClock = clock, seed: int = seed) -> None:
            router = RouterInMemory(clock, stale_after_s=3600)
            loop = OpenLoop(router, num_workers=num_workers, slots=slots, seed=seed, **SIZES)
            per_s = loop.capacity_per_s
            await loop.run(
                lambda it: it.send(0.05 * per_s, SECONDS, tenant="quiet"),
                lambda it: it.send(per_s, SECONDS, tenant="loud"),
            )
            quiet, loud = (loop.served(BEGIN, SECONDS, each) for each in ("quiet", "loud"))
            waits.extend(each.first_token_s for each in quiet if each.first_token_s)
            shares.append((len(quiet) + len(loud)) / (SECONDS - BEGIN) / per_s)

        run_virtual(scenario(), clock)
    ordered = sorted(waits)
    assert ordered[int(0.99 * (len(ordered) - 1))] <= 1.25 * SIZES["first_token_s"]
    assert sum(shares) / len(shares) >= 0.98
