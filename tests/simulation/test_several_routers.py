"""Two routers that are both active: one dies under load, and nobody notices."""

import asyncio
import random
from itertools import count
from pathlib import Path

from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.simulation.fleet import Answer, Fleet, running_fleet

NUM_CHATS = 8
MAX_TOKENS = 8


async def chat(fleet: Fleet, number: int, until_s: float) -> None:
    """Ask one longer question after the other, each with the last one as its beginning."""
    rng = random.Random(number)
    text = f"chat {number} of many"
    for turn in count():
        if fleet.clock.now() >= until_s:
            return
        request_id, answer = f"r{number}-{turn}", Answer()
        fields = {"max_tokens": MAX_TOKENS, "seed": 1, "request_id": request_id}
        await fleet.ask(text, answer, **fields)
        assert answer.texts[0] == fleet.expected(request_id, MAX_TOKENS, 1)
        text += " more" * rng.randint(10, 20)
        if len(text) > 600:
            text = f"chat {number} again, for turn {turn}"
        await asyncio.sleep(rng.uniform(0.1, 0.3))


def hit_rate(fleet: Fleet, first: int) -> float:
    """The share of the prompt tokens that was cached, of the requests settled from `first` on."""
    records = fleet.quota.settled[first:]
    return sum(record.num_cached_tokens for record in records) / sum(
        record.num_prompt_tokens for record in records
    )


def test_a_router_that_dies_under_load_costs_no_request_and_few_hits(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        async with running_fleet(3, clock, tmp_path, num_blocks=1536, num_routers=2) as fleet:
            began_at = clock.now()
            async with asyncio.TaskGroup() as tasks:
                for number in range(NUM_CHATS):
                    tasks.create_task(chat(fleet, number, began_at + 6))
                await asyncio.sleep(2)
                before = hit_rate(fleet, 0)
                assert min(len(router.picks) for router in fleet.routers.values()) >= 10
                fleet.kill_router("router-0")
                num_before = len(fleet.quota.settled)
                await asyncio.sleep(1.5)
                assert hit_rate(fleet, num_before) >= 0.9 * before
                fleet.start_router("router-0")
                num_picks = len(fleet.routers["router-0"].picks)
                await asyncio.sleep(0.5)
                num_before = len(fleet.quota.settled)
                await asyncio.sleep(1.5)
                assert hit_rate(fleet, num_before) >= 0.9 * before
                assert len(fleet.routers["router-0"].picks) > num_picks
            assert before > 0.3
            assert all(record.num_attempts == 1 for record in fleet.quota.settled)

    run_virtual(scenario(), clock)
