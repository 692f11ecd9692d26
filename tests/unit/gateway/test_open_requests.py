"""The page of open requests: what runs, where, how far; no text of any request."""

import asyncio
import json

import pytest

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


def test_the_ages_of_a_request_run_on_while_it_stays_in_a_stage() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 60.0
        waiting = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(0.2)
        (before,) = json.loads(open_requests(fleet.gateway))
        await asyncio.sleep(5)
        (after,) = json.loads(open_requests(fleet.gateway))
        assert before["stage"] == after["stage"] == "pick"
        assert after["age_s"] - before["age_s"] == pytest.approx(5)
        assert after["stage_age_s"] - before["stage_age_s"] == pytest.approx(5)
        assert after["stage_age_s"] < after["age_s"]
        waiting.cancel()

    simulate(scenario)
