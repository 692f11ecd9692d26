"""No router is left: a gateway goes on with the workers that it was told of last."""

import asyncio
from pathlib import Path

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.gateway import instruments
from tests.simulation.fleet import Answer, Fleet, running_fleet

MAX_TOKENS = 200


async def ask(fleet: Fleet, number: int) -> None:
    request_id, answer = f"r{number}", Answer()
    fields = {"max_tokens": MAX_TOKENS, "seed": number, "request_id": request_id}
    await fleet.ask(f"{number} tells a story", answer, **fields)
    assert answer.texts[0] == fleet.expected(request_id, MAX_TOKENS, number)


def test_streams_begin_and_move_without_any_router(tmp_path: Path) -> None:
    clock = VirtualClock()
    count = instruments.GATEWAY_FALLBACK_PICKS._value

    async def scenario() -> None:
        before = count.get()
        async with running_fleet(1, clock, tmp_path, num_decode=3) as fleet:
            async with asyncio.TaskGroup() as tasks:
                for number in range(4):
                    tasks.create_task(ask(fleet, number))
                await asyncio.sleep(0.1)
                fleet.router.close()
                await asyncio.sleep(1)
                assert fleet.gateway.unready_reasons() == []
                for number in range(4, 16):
                    tasks.create_task(ask(fleet, number))
                await asyncio.sleep(0.3)
                fleet.kill_process("sim:3")
            records = fleet.quota.settled
            assert len(records) == 16
            num_moved = sum(record.num_attempts > 1 for record in records)
            assert num_moved >= 1
            assert count.get() - before == 12 + num_moved

    run_virtual(scenario(), clock)
