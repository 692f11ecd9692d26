"""The page of open requests: what runs, where, how far; no text of any request."""

import asyncio
import json

from services.gateway.open_requests import open_requests
from tests.unit.gateway.fakes import Fleet, simulate


def test_a_running_request_is_shown_with_its_worker_and_gone_when_it_ends() -> None:
    async def scenario(fleet: Fleet) -> None:
        running = fleet.tasks.create_task(
            fleet.chat(messages=[{"role": "user", "content": "canary"}])
        )
        await asyncio.sleep(0.08)
        page = open_requests(fleet.gateway)
        assert b"canary" not in page
        (row,) = json.loads(page)
        assert row["model"] == "demo"
        assert row["stage"] == "decode"
        assert len(row["workers"]) == 1
        assert row["num_prompt_tokens"] > 0
        assert row["age_s"] > 0
        await running
        assert json.loads(open_requests(fleet.gateway)) == []

    simulate(scenario)
