"""Idempotency keys behind two gateways with one store."""

import asyncio
from typing import Any

import pytest

from services.gateway.stored.shared_answers import (
    BEAT_S,
    WINDOW_S,
    Claim,
    SharedAnswer,
    SharedAnswers,
)
from services.gateway.stored.store import StoreLimits
from tests.unit.gateway.stored.clients import Answered, Caller, with_store

PATH = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def other(caller: Caller) -> Caller:
    """Another gateway, which shares the store and nothing else."""
    return Caller(caller.fleet, caller.redis)


async def ask(caller: Caller, key: str = "k1", **fields: Any) -> Answered:
    return await caller.call("POST", PATH, BODY | fields, {"idempotency-key": key})


async def alive(caller: Caller) -> list[bytes]:
    """The names by which gateways say that they still compute a request."""
    return [name for name in await caller.redis.keys() if name.endswith(b":alive")]


def test_another_gateway_repeats_the_first_answer() -> None:
    async def scenario(caller: Caller) -> None:
        first = await ask(caller)
        second = await ask(other(caller))
        assert (second.status, second.body) == (200, first.body)
        assert second.headers["idempotent-replayed"] == "true"
        assert second.headers["original-request"] == first.headers["x-request-id"]
        assert len(caller.fleet.quota.settled) == 1
        assert (await ask(other(caller), "k2")).json["id"] != first.json["id"]

    with_store(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_kept_in_a_store_that_takes_a_while(stream: bool) -> None:
    async def scenario(caller: Caller) -> None:
        caller.redis.delay_s = 0.01
        first = await ask(caller, stream=stream)
        second = await ask(other(caller), stream=stream)
        if stream:
            assert second.error == "409 answer_not_kept Idempotency-Key"
        else:
            assert (second.status, second.body) == (200, first.body)

    with_store(scenario)


def test_another_gateway_knows_whose_key_it_is_and_that_it_runs() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 30
        first = caller.begin("POST", PATH, BODY, {"idempotency-key": "k1"})
        await asyncio.sleep(1)
        await caller.redis.delete(*await alive(caller))
        await asyncio.sleep(BEAT_S)
        second = other(caller)
        assert (await ask(second)).error == "409 idempotency_key_in_use Idempotency-Key"
        assert (await ask(second, n=2)).error == "422 idempotency_key_reused Idempotency-Key"
        await asyncio.sleep(30)
        assert (await ask(second)).body == first.body

    with_store(scenario)


def test_a_key_that_another_request_took_over_never_gets_the_answer_of_the_first() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 30
        first = caller.begin("POST", PATH, BODY, {"idempotency-key": "k1"})
        await asyncio.sleep(1)
        await caller.redis.delete(*await alive(caller))
        later = other(caller).begin("POST", PATH, BODY | {"n": 2}, {"idempotency-key": "k1"})
        await asyncio.sleep(40)
        assert (first.status, later.status) == (200, 200)
        assert (await ask(other(caller))).body == first.body
        assert (await ask(other(caller), n=2)).error == "422 idempotency_key_reused Idempotency-Key"

    with_store(scenario)


def test_a_request_that_fails_leaves_the_claim_of_the_one_that_took_its_key() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 30
        short = {"idempotency-key": "k1", "x-request-timeout-s": "3"}
        failed = caller.begin("POST", PATH, BODY, short)
        await asyncio.sleep(1)
        await caller.redis.delete(*await alive(caller))
        later = other(caller).begin("POST", PATH, BODY | {"n": 2}, {"idempotency-key": "k1"})
        await asyncio.sleep(3)
        assert failed.status == 504
        assert (await ask(other(caller))).error == "422 idempotency_key_reused Idempotency-Key"
        await asyncio.sleep(40)
        assert (await ask(other(caller), n=2)).body == later.body

    with_store(scenario)


def test_a_claim_that_another_request_took_over_is_not_kept_alive_by_the_first() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 100
        caller.begin("POST", PATH, BODY, {"idempotency-key": "k1"})
        await asyncio.sleep(1)
        await caller.redis.delete(*await alive(caller))
        later = other(caller).begin("POST", PATH, BODY | {"n": 2}, {"idempotency-key": "k1"})
        await asyncio.sleep(1)
        later.gone.set()
        await asyncio.sleep(BEAT_S)
        assert not await alive(caller)

    with_store(scenario)


def test_a_claim_whose_reply_was_lost_is_ended_like_any_other() -> None:
    async def scenario(caller: Caller) -> None:
        caller.redis.is_mute = True
        first = caller.begin("POST", PATH, BODY, {"idempotency-key": "k1"})
        failed = caller.begin("POST", PATH, BODY | {"n": 0}, {"idempotency-key": "k2"})
        while caller.redis.num_lost < 2:
            await asyncio.sleep(0.001)
        caller.redis.is_mute = False
        await asyncio.sleep(2)
        assert (first.status, failed.status) == (200, 400)
        assert (await ask(other(caller))).body == first.body
        assert (await ask(other(caller), "k2")).status == 200

    with_store(scenario)


def test_a_claim_that_the_store_was_told_twice_is_not_taken_for_that_of_another() -> None:
    async def scenario(caller: Caller) -> None:
        assert caller.fleet.gateway.store is not None
        claims = SharedAnswers(caller.fleet.gateway.store)
        for _ in range(2):
            assert isinstance(await claims.begin("acme", "k1", b"d", "r1"), Claim)
        found = await claims.begin("acme", "k1", b"d", "r2")
        assert isinstance(found, SharedAnswer)

    with_store(scenario)


def test_a_client_that_leaves_while_its_key_is_claimed_leaves_no_claim() -> None:
    async def scenario(caller: Caller) -> None:
        caller.redis.delay_s = 0.01
        first = caller.begin("POST", PATH, BODY, {"idempotency-key": "k1"})
        while not caller.redis.num_read["EVAL"]:
            await asyncio.sleep(0.001)
        first.gone.set()
        await asyncio.sleep(1)
        caller.redis.delay_s = 0
        assert (await ask(other(caller), n=2)).status == 200

    with_store(scenario)


def test_a_failed_request_and_a_stream_are_known_too() -> None:
    async def scenario(caller: Caller) -> None:
        second = other(caller)
        assert (await ask(caller, logit_bias={"no": 1})).status == 400
        first = await ask(second, stream=True)
        again = await ask(caller, stream=True)
        assert again.error == "409 answer_not_kept Idempotency-Key"
        assert first.headers["x-request-id"] in again.json["error"]["message"]

    with_store(scenario)


def test_an_answer_that_is_too_large_for_the_store_leaves_the_fact() -> None:
    async def scenario(caller: Caller) -> None:
        assert (await ask(caller)).status == 200
        assert (await ask(other(caller))).error == "409 answer_not_kept Idempotency-Key"
        assert (await ask(caller)).status == 200

    with_store(scenario, StoreLimits(max_object_bytes=800))


def test_an_answer_that_no_object_may_hold_is_not_sent_to_the_store() -> None:
    async def scenario(caller: Caller) -> None:
        first = await ask(caller, n=128)
        assert caller.redis.largest_argument < len(first.body)
        assert (await ask(other(caller), n=128)).error == "409 answer_not_kept Idempotency-Key"

    with_store(scenario, StoreLimits(max_object_bytes=800))


def test_a_key_is_forgotten_after_its_window() -> None:
    async def scenario(caller: Caller) -> None:
        await ask(caller)
        names = [name for name in await caller.redis.keys() if b":key_" in name]
        left_s = [await caller.redis.ttl(name) for name in names if not name.endswith(b":alive")]
        assert len(left_s) == 1
        assert 0 < left_s[0] <= WINDOW_S

    with_store(scenario)


def test_the_request_of_a_dead_gateway_is_tried_again() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 30
        caller.begin("POST", PATH, BODY, {"idempotency-key": "k1"})
        await asyncio.sleep(1)
        # The gateway's words do not reach the store any more.
        names = await alive(caller)
        assert len(names) == 1
        await caller.redis.delete(*names)
        caller.fleet.worker.prefill_s = 0
        assert (await ask(other(caller))).status == 200

    with_store(scenario)


def test_without_its_store_a_gateway_knows_its_own_keys() -> None:
    async def scenario(caller: Caller) -> None:
        caller.redis.is_away = True
        first = await ask(caller)
        assert (first.status, (await ask(caller)).body) == (200, first.body)
        assert (await ask(other(caller))).json["id"] != first.json["id"]

    with_store(scenario)


def test_nothing_is_shared_of_a_tenant_that_the_operator_excludes() -> None:
    async def scenario(caller: Caller) -> None:

        assert (await ask(caller)).status == 200
        assert not await caller.redis.keys()

    with_store(scenario, StoreLimits(excluded_tenants=("acme",)))
