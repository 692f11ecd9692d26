"""Batches: their lines are answered once, whatever becomes of the gateways, or not in time."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from baton.runtime import telemetry
from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.key_registry import BATCH_PRIORITY
from services.gateway.batches.request import owner_json, owner_of
from services.gateway.batches.run import LEASE_S
from services.gateway.stored.store import BatchLimits
from services.gateway.tenants.principal import KnownKey, VouchedIdentity
from tests.unit.gateway.batches.batch_client import BatchClient, line, text_of, with_batches
from tests.unit.gateway.fakes import KEY

ONE_AT_ONCE = BatchLimits(num_lines_at_once=1)


def counts(batch: Any) -> tuple[int, int, int]:
    told = batch["request_counts"]
    return told["total"], told["completed"], told["failed"]


def test_the_lines_of_a_batch_are_answered_behind_all_other_requests() -> None:
    async def scenario(client: BatchClient) -> None:
        client.fleet.quota.principal.priority = 7
        lines = [line("b"), "", line("a"), line("c", temperature=-1)]
        created = await client.create(lines, metadata={"job": "night"})
        assert (created["status"], created["metadata"]) == ("validating", {"job": "night"})
        assert created["expires_at"] - created["created_at"] == 86_400
        batch = await client.ended(created)
        assert (batch["status"], counts(batch)) == ("completed", (3, 2, 1))
        assert batch["model"] == "demo"
        answers = await client.content(batch["output_file_id"])
        assert [each["custom_id"] for each in answers] == ["a", "b"]
        response = answers[0]["response"]
        assert response["status_code"] == 200
        assert response["body"]["choices"][0]["message"]["content"] == "Hello there."
        (refused,) = await client.content(batch["error_file_id"])
        error = refused["response"]["body"]["error"]
        told = (refused["custom_id"], refused["response"]["status_code"], error["param"])
        assert told == ("c", 400, "temperature")
        assert batch["usage"]["output_tokens"] == sum(
            each["response"]["body"]["usage"]["completion_tokens"] for each in answers
        )
        assert {pick.priority for pick in client.fleet.router.picked} == {BATCH_PRIORITY}
        assert len(client.fleet.quota.settled) == 2
        listed = (await client.caller.get("/v1/files?purpose=batch_output")).json["data"]
        assert len(listed) == 2
        assert await client.store.free_batches() == []

    with_batches(scenario)


def test_an_answer_that_is_too_large_for_a_file_fails_its_line() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.ended(await client.create([line("a"), line("b", n=8)]))
        assert (batch["status"], counts(batch)) == ("completed", (2, 1, 1))
        (refused,) = await client.content(batch["error_file_id"])
        assert (refused["custom_id"], refused["response"]["status_code"]) == ("b", 413)
        assert refused["response"]["body"]["error"]["code"] == "body_too_large"

    with_batches(scenario, BatchLimits(max_answer_bytes=800))


def test_the_lines_of_a_batch_link_to_the_span_of_its_creation() -> None:
    exporter = InMemorySpanExporter()

    async def scenario(client: BatchClient) -> None:
        await client.ended(await client.create([line("a"), line("b")]))

    telemetry.setup("test", SimpleSpanProcessor(exporter))
    try:
        with_batches(scenario)
    finally:
        telemetry.setup("test")
    spans = exporter.get_finished_spans()
    (created,) = (span for span in spans if span.name == "create batch")
    lines = [span for span in spans if span.kind is SpanKind.CONSUMER]
    assert (created.kind, len(lines)) == (SpanKind.PRODUCER, 2)
    for span in lines:
        (link,) = span.links
        assert link.context.span_id == created.context.span_id
        assert dict(link.attributes or {}) == {"baton.link": "batch"}


def test_no_key_can_be_read_from_what_is_kept() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line()])
        fields = await client.store.batch(client.key(batch))
        assert "digests" in fields["owner"]
        assert KEY not in str(fields)

    with_batches(scenario)


@pytest.mark.parametrize(
    "owner",
    [
        KnownKey((b"a", b"b")),
        VouchedIdentity("jwt:ann"),
        VouchedIdentity("jwt:ann", ()),
        VouchedIdentity("jwt:ann", ("x",)),
    ],
)
def test_the_owner_of_a_batch_is_read_as_it_was_kept(owner: KnownKey | VouchedIdentity) -> None:
    assert owner_of(owner_json(owner)) == owner


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([line("a"), line("a"), "{"], [("duplicate_custom_id", 2), ("invalid_json_line", 3)]),
        ([{**line(), "method": "GET"}], [("invalid_method", 1)]),
        (["", line(url="/v1/completions")], [("mismatched_url", 2)]),
        ([line(stream=True)], [("unsupported_parameter", 1)]),
        ([line(model="other")], [("model_not_found", 1)]),
        ([line(), {"custom_id": "x"}], [("invalid_request", 2)]),
        ([line(str(number)) for number in range(4)], [("too_many_lines", None)]),
        (["", " "], [("empty_file", None)]),
        (["x" * (1024 * 1024 + 2)], [("invalid_json_line", 1)]),
    ],
)
def test_a_batch_with_bad_lines_fails_before_any_is_answered(
    lines: list[Any], codes: list[tuple[str, int | None]]
) -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.ended(await client.create(lines))
        assert batch["status"] == "failed"
        assert [(each["code"], each["line"]) for each in batch["errors"]["data"]] == codes
        assert client.fleet.worker.submits == []

    with_batches(scenario, BatchLimits(max_lines=3))


def test_a_batch_is_refused_that_cannot_be_meant() -> None:
    async def scenario(client: BatchClient) -> None:
        file_id = (await client.upload(text_of([line()]))).json["id"]
        for fields, error in (
            ({"endpoint": "/v1/models"}, "400 invalid_value endpoint"),
            ({"completion_window": "1h"}, "400 invalid_value completion_window"),
            ({"input_file_id": "file-1"}, "404 not_found None"),
        ):
            refused = await client.submit(**{"input_file_id": file_id, **fields})
            assert refused.error == error

    with_batches(scenario)


@pytest.mark.parametrize("name", ["files", "index", "batches", "batch_1", "batch_" + "0" * 32])
def test_a_batch_that_is_not_there_is_not_found(name: str) -> None:
    async def scenario(client: BatchClient) -> None:
        await client.create([line()])
        path = f"/v1/batches/{name}"
        for refused in (
            await client.caller.get(path),
            await client.caller.call("POST", f"{path}/cancel"),
            await client.caller.get(f"/v1/files/{name}/content"),
            await client.caller.call("DELETE", f"/v1/files/{name}"),
        ):
            assert refused.error == "404 not_found None"

    with_batches(scenario)


def test_a_limit_or_a_shortage_is_waited_for() -> None:
    async def scenario(client: BatchClient) -> None:
        client.fleet.quota.reserve_failure = LimitExceeded("not now", retry_after_s=3)
        batch = await client.create([line()])
        await asyncio.sleep(20)
        client.fleet.quota.reserve_failure = None
        client.fleet.router.failure = Unavailable("no worker", reason="no_worker")
        await asyncio.sleep(90)
        assert counts(await client.get(batch)) == (1, 0, 0)
        client.fleet.router.failure = None
        assert counts(await client.ended(batch)) == (1, 1, 0)

    with_batches(scenario)


def test_a_cancelled_batch_keeps_the_answers_that_it_has() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line("a"), line("b")])
        while counts(await client.get(batch))[1] == 0:
            await asyncio.sleep(0.1)
        client.fleet.worker.step_s = 100.0
        cancelling = await client.caller.call("POST", f"/v1/batches/{batch['id']}/cancel")
        assert cancelling.json["status"] == "cancelling"
        batch = await client.ended(batch)
        assert (batch["status"], counts(batch)) == ("cancelled", (2, 1, 0))
        assert [each["custom_id"] for each in await client.content(batch["output_file_id"])] == [
            "a"
        ]
        assert batch["error_file_id"] is None
        again = await client.caller.call("POST", f"/v1/batches/{batch['id']}/cancel")
        assert again.json == batch

    with_batches(scenario, ONE_AT_ONCE)


def test_lines_without_an_answer_expire_with_the_window() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line("a"), line("b"), line("c")])
        await client.shorten(batch, 20)
        while counts(await client.get(batch))[1] == 0:
            await asyncio.sleep(0.1)
        client.fleet.worker.step_s = 100.0
        batch = await client.ended(batch)
        assert (batch["status"], counts(batch)) == ("expired", (3, 1, 2))
        expired = await client.content(batch["error_file_id"])
        assert [each["custom_id"] for each in expired] == ["b", "c"]
        assert {each["error"]["code"] for each in expired} == {"batch_expired"}
        assert {each["response"] for each in expired} == {None}

    with_batches(scenario, ONE_AT_ONCE)


def test_another_gateway_goes_on_after_one_that_died_and_answers_no_line_again() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line(str(number)) for number in range(4)])
        key = client.key(batch)
        # This gateway finds it later than the one that dies.
        await client.store.lease(key, "gw-2", LEASE_S)
        dying = asyncio.create_task(client.other_run(batch).run())
        while counts(await client.get(batch))[1] < 2:
            await asyncio.sleep(0.05)
        client.redis.is_away = True
        dying.cancel()
        await asyncio.wait({dying})
        client.redis.is_away = False
        held = await client.store.lease(key, "gw-3", LEASE_S)
        assert held == "held"
        batch = await client.ended(batch)
        assert (batch["status"], counts(batch)) == ("completed", (4, 4, 0))
        answers = await client.content(batch["output_file_id"])
        assert [each["custom_id"] for each in answers] == ["0", "1", "2", "3"]
        assert len(client.fleet.worker.submits) <= 5, "only the line in flight is begun again"

    with_batches(scenario, ONE_AT_ONCE)


def test_a_gateway_that_leaves_lets_its_lines_end_and_gives_the_batch_back() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line(str(number)) for number in range(3)])
        while not client.fleet.worker.submits:
            await asyncio.sleep(0.05)
        await client.fleet.gateway.leave_batches(60.0)
        assert counts(await client.get(batch)) == (3, 1, 0)
        assert len(client.fleet.worker.submits) == 1
        assert await client.store.free_batches() == [client.key(batch)]
        assert not await client.store.lease(client.key(batch), "gw-2", LEASE_S)
        await client.other_run(batch).run()
        assert counts(await client.get(batch)) == (3, 3, 0)

    with_batches(scenario, ONE_AT_ONCE)


def test_answers_outlast_a_store_that_is_away_for_a_while() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line("a"), line("b")])
        while not client.fleet.worker.submits:
            await asyncio.sleep(0.05)
        client.redis.is_away = True
        await asyncio.sleep(40)
        client.redis.is_away = False
        batch = await client.ended(batch)
        assert (batch["status"], counts(batch)) == ("completed", (2, 2, 0))
        assert len(client.fleet.worker.submits) == 2

    with_batches(scenario)


def test_a_batch_waits_while_its_tenant_has_no_room_for_answers() -> None:
    async def scenario(client: BatchClient) -> None:
        other = (await client.upload("x" * 1000)).json["id"]
        batch = await client.create([line(str(number)) for number in range(3)])
        await asyncio.sleep(30)
        waiting = await client.get(batch)
        assert (waiting["status"], counts(waiting)) == ("in_progress", (3, 1, 0))
        await client.caller.call("DELETE", f"/v1/files/{other}")
        assert counts(await client.ended(batch)) == (3, 3, 0)

    with_batches(scenario, BatchLimits(max_bytes_of_tenant=3800, num_lines_at_once=1))


def test_a_batch_fails_when_its_input_is_deleted() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line(str(number)) for number in range(2)])
        await client.caller.call("DELETE", f"/v1/files/{batch['input_file_id']}")
        batch = await client.ended(batch)
        assert batch["status"] == "failed"
        assert batch["errors"]["data"][0]["code"] == "input_file_gone"

    with_batches(scenario)


def test_a_batch_whose_key_was_revoked_fails() -> None:
    async def scenario(client: BatchClient) -> None:
        key = client.key(await client.create([line()]))
        await client.store.lease(key, "gw-2", LEASE_S)
        client.fleet.quota.digests.clear()
        await asyncio.sleep(LEASE_S + 5)
        fields = await client.store.batch(key)
        assert fields["status"] == "failed"
        assert "invalid_api_key" in fields["errors"]

    with_batches(scenario)


def test_batches_are_listed_the_newest_first() -> None:
    async def scenario(client: BatchClient) -> None:
        names = []
        for _ in range(3):
            names.append((await client.create([line()]))["id"])
            await asyncio.sleep(1)
        page = (await client.caller.get("/v1/batches?limit=2")).json
        assert [each["id"] for each in page["data"]] == names[:0:-1]
        rest = (await client.caller.get(f"/v1/batches?after={page['last_id']}")).json
        assert [each["id"] for each in rest["data"]] == names[:1]

    with_batches(scenario)
