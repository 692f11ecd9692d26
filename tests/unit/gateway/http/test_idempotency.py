"""Repeated requests with an Idempotency-Key, through the app and by the bounds of what is kept."""

import asyncio
import json
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import InvalidRequest, NoRoom
from services.gateway.http.idempotency import (
    MAX_BYTES,
    MAX_BYTES_OF_TENANT,
    WINDOW_S,
    KeptAnswer,
    KeptAnswers,
)
from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.test_app import CHAT, Client, app_of, serve

WHOLE = CHAT | {"stream": False}


def keyed(fields: dict[str, Any], key: str = "k1") -> Client:
    client = Client(fields)
    client.scope["headers"].append((b"idempotency-key", key.encode()))
    return client


def code_of(client: Client) -> str:
    return str(json.loads(client.body)["error"]["code"])


def test_a_repeated_request_gets_the_first_answer_and_is_not_billed() -> None:
    async def scenario(fleet: Fleet) -> None:
        app = app_of(fleet)
        first, second, other = keyed(WHOLE), keyed(WHOLE), keyed(WHOLE, "k2")
        await serve(app, first)
        await serve(app, second)
        assert second.status == 200
        assert second.body == first.body
        assert second.headers["idempotent-replayed"] == "true"
        assert second.headers["original-request"] == first.headers["x-request-id"]
        assert second.headers["x-request-id"] != first.headers["x-request-id"]
        assert len(fleet.quota.settled) == 1
        await serve(app, other)
        assert json.loads(other.body)["id"] != json.loads(first.body)["id"]
        assert "idempotent-replayed" not in other.headers

    simulate(scenario)


def test_another_request_under_the_same_key_is_refused() -> None:
    async def scenario(fleet: Fleet) -> None:
        app = app_of(fleet)
        await serve(app, keyed(WHOLE))
        other = keyed(WHOLE | {"temperature": 0.5})
        await serve(app, other)
        assert (other.status, code_of(other)) == (422, "idempotency_key_reused")
        assert other.headers["x-should-retry"] == "false"

    simulate(scenario)


def test_a_request_whose_first_one_runs_is_told_to_come_again() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 5
        app, first, second = app_of(fleet), keyed(WHOLE), keyed(WHOLE)
        running = fleet.tasks.create_task(serve(app, first))
        await asyncio.sleep(1)
        await serve(app, second)
        assert (second.status, code_of(second)) == (409, "idempotency_key_in_use")
        assert (second.headers["retry-after"], second.headers["x-should-retry"]) == ("1", "true")
        await running
        again = keyed(WHOLE)
        await serve(app, again)
        assert again.body == first.body

    simulate(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_failed_is_tried_again(stream: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        app = app_of(fleet)
        for worker in fleet.workers.values():
            worker.refusal = NoRoom("full", retry_after_s=0.3)
        first, second = (keyed(WHOLE | {"stream": stream}) for _ in range(2))
        await serve(app, first)
        assert first.status == 503
        for worker in fleet.workers.values():
            worker.refusal = None
        await serve(app, second)
        assert second.status == 200

    simulate(scenario)


def test_a_request_whose_client_left_is_tried_again() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 5
        app, first, second = app_of(fleet), keyed(WHOLE), keyed(WHOLE)
        running = fleet.tasks.create_task(serve(app, first))
        await asyncio.sleep(1)
        first.gone.set()
        await running
        await serve(app, second)
        assert second.status == 200

    simulate(scenario)


def test_of_a_stream_only_the_fact_is_kept() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, first, second = app_of(fleet), keyed(CHAT), keyed(CHAT)
        await serve(app, first)
        assert first.events[-1] == "[DONE]"
        await serve(app, second)
        assert (second.status, code_of(second)) == (409, "answer_not_kept")
        assert first.headers["x-request-id"] in json.loads(second.body)["error"]["message"]
        assert len(fleet.quota.settled) == 1

    simulate(scenario)


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
def test_a_key_that_is_long_or_not_plain_is_refused(key: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = keyed(WHOLE, key)
        await serve(app_of(fleet), client)
        assert (client.status, code_of(client)) == (400, "invalid_value")
        assert json.loads(client.body)["error"]["param"] == "Idempotency-Key"

    simulate(scenario)


class Kept:
    """Answers of several tenants, and a clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.answers = KeptAnswers(self.clock)

    def add(self, tenant: str, key: str, num_bytes: int = 1000) -> None:
        assert self.answers.begin(tenant, key, b"d") is None
        self.answers.end(tenant, key)
        until_s = self.clock.now() + WINDOW_S
        self.answers.keep(tenant, key, KeptAnswer("r", b"d", bytes(num_bytes), until_s))

    def has(self, tenant: str, key: str) -> bool:
        if self.answers.begin(tenant, key, b"d") is not None:
            return True
        self.answers.end(tenant, key)
        return False


def test_a_tenants_oldest_answers_make_room_for_its_new_ones() -> None:
    kept = Kept()
    kept.add("other", "k")
    size = MAX_BYTES_OF_TENANT // 4
    for number in range(5):
        kept.add("acme", f"k{number}", size)
    assert [kept.has("acme", f"k{number}") for number in range(5)] == [False] * 2 + [True] * 3
    assert kept.has("other", "k")
    with pytest.raises(InvalidRequest) as caught:
        kept.add("acme", "large", MAX_BYTES_OF_TENANT)
        kept.has("acme", "large")
    assert caught.value.reason == "answer_not_kept"
    assert kept.has("acme", "k4"), "an answer that is too large takes no room from others"


def test_all_tenants_together_have_a_bound_and_expired_answers_make_room() -> None:
    kept = Kept()
    size = MAX_BYTES_OF_TENANT - 1000
    num_tenants = MAX_BYTES // size
    for number in range(num_tenants):
        kept.add(f"t{number}", "k", size)
    kept.add("late", "k", size)
    assert kept.answers.num_bytes <= MAX_BYTES
    with pytest.raises(InvalidRequest):
        kept.has("late", "k")
    kept.clock.advance(WINDOW_S)
    kept.add("late", "k2", size)
    assert kept.has("late", "k2")
    assert not kept.has("t0", "k")
    assert kept.answers.num_bytes < 2 * size
