"""Headers, bodies and responses at the HTTP edge."""

import random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import DeadlineExceeded, InvalidRequest, LimitExceeded, Overloaded
from baton.wire.v1 import failure_pb2
from services.gateway.http.request import (
    Headers,
    RequestBody,
    RequestIds,
    authorization_of,
    timeout_of,
    traceparent_of,
)
from services.gateway.http.response import (
    PART_BYTES,
    HttpResponse,
    duration,
    error_headers,
    limit_headers,
    server_timing,
)


def headers(**fields: str) -> Headers:
    return Headers([(name.replace("_", "-").encode(), v.encode()) for name, v in fields.items()])


def receiver(*messages: dict[str, object]):
    waiting = list(messages)

    async def receive():
        if not waiting:
            import asyncio

            await asyncio.sleep(3600)
        return waiting.pop(0)

    return receive


def body(data: bytes, more: bool = False) -> dict[str, object]:
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.mark.parametrize("given", ["abc", "A-b_c.1:2", "x" * 64])
def test_a_sane_request_id_is_kept(given: str) -> None:
    assert RequestIds(random.Random(1)).of(headers(x_request_id=given)) == given


@pytest.mark.parametrize("given", ["", "a b", "a\nb", "é", "x" * 65, "a/b"])
def test_another_request_id_is_replaced(given: str) -> None:
    fresh = RequestIds(random.Random(1)).of(headers(x_request_id=given))
    assert fresh.startswith("req_")
    assert len(fresh) == 36


def test_a_repeated_request_id_gets_a_suffix_because_it_names_one_request() -> None:
    ids = RequestIds(random.Random(1))
    same = headers(x_request_id="same")
    first, *others = [ids.of(same) for _ in range(10)]
    assert first == "same"
    assert len(set(others)) == 9
    assert all(other.startswith("same.") for other in others)
    assert [ids.usage_id_of(other, same) for other in others] == others


def test_a_request_id_that_comes_to_two_gateways_has_two_usage_ids() -> None:
    given = headers(x_request_id="same")
    first, second = RequestIds(random.Random(1)), RequestIds(random.Random(2))
    assert first.of(given) == second.of(given) == "same"
    bills = {first.usage_id_of("same", given), second.usage_id_of("same", given)}
    assert len(bills) == 2
    assert all(bill.startswith("same.") for bill in bills)


def test_a_fresh_request_id_is_its_usage_id() -> None:
    ids = RequestIds(random.Random(1))
    fresh = ids.of(headers())
    assert ids.usage_id_of(fresh, headers()) == fresh


def test_two_authorization_headers_are_no_key() -> None:
    twice = Headers([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")])
    assert authorization_of(twice) == "Bearer a,Bearer b"
    assert authorization_of(headers()) is None


def test_only_a_well_formed_traceparent_is_used() -> None:
    good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert traceparent_of(headers(traceparent=good)) == good
    assert traceparent_of(headers(traceparent="00-xyz")) == ""
    assert traceparent_of(headers()) == ""


@pytest.mark.parametrize(
    "name", ["x-request-timeout-s", "x-first-token-timeout-s", "x-token-gap-timeout-s"]
)
def test_timeout_headers_are_seconds_up_to_an_hour(name: str) -> None:
    def of(*values: bytes) -> float | None:
        return timeout_of(Headers([(name.encode(), value) for value in values]), name)

    assert of() is None
    assert of(b"2.5") == 2.5
    assert of(b"1e9") == of(b"inf") == 3600
    with pytest.raises(DeadlineExceeded):
        of(b"0")
    for bad in (b"-1", b"soon", b"nan", b"", b"-inf"):
        with pytest.raises(InvalidRequest) as caught:
            of(bad)
        assert caught.value.param == name
    with pytest.raises(InvalidRequest):
        of(b"1", b"2")


async def test_a_body_in_pieces_is_joined() -> None:
    receive, needed = receiver(body(b"ab", True), body(b"cd")), []
    assert await RequestBody(headers(), receive, 4).read(needed.append) == b"abcd"
    assert needed == [2, 4]


def test_a_body_tells_its_length_as_far_as_it_may_be() -> None:
    for told, num_bytes in (("3", 3), ("5", 4), ("x", 0)):
        assert RequestBody(headers(content_length=told), receiver(), 4).num_told_bytes == num_bytes
    assert RequestBody(headers(), receiver(), 4).num_told_bytes == 0


async def test_a_body_over_the_limit_is_refused_before_and_while_reading() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await RequestBody(headers(content_length="5"), receiver(), 4).read(int)
    assert caught.value.row.http_status == 413
    with pytest.raises(InvalidRequest) as caught:
        await RequestBody(headers(), receiver(body(b"abcde", True)), 4).read(int)
    assert caught.value.row.http_status == 413


def test_a_body_that_stalls_is_a_408_after_ten_seconds() -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest) as caught:
            await RequestBody(headers(), receiver(body(b"a", True)), 4).read(int)
        assert caught.value.row.http_status == 408

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (12, "12ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (360_000, "6m0s"),
        (90_500, "1m30.5s"),
    ],
)
def test_durations_as_openai_writes_them(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_retry_after_is_rounded_up() -> None:
    told = error_headers(LimitExceeded("x", retry_after_s=1.01))
    assert told["retry-after"] == "2"
    assert told["x-should-retry"] == "true"
    quota = error_headers(LimitExceeded("x", reason="insufficient_quota"))
    assert quota["x-should-retry"] == "false"
    assert "retry-after" not in error_headers(Overloaded("x"))


def test_unlimited_limits_are_left_out() -> None:
    assert limit_headers(None) == {}
    told = limit_headers(failure_pb2.LimitState(limit_tokens=10, reset_tokens_ms=5))
    assert set(told) == {
        "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
    }  # fmt: skip


def test_headers_say_whose_limit_binds() -> None:
    told = limit_headers(
        failure_pb2.LimitState(
            limit_requests=5, requests_scope="organisation", limit_tokens=10, tokens_scope="key"
        )
    )
    assert told["x-ratelimit-scope-requests"] == "organisation"
    assert told["x-ratelimit-scope-tokens"] == "key"


def test_server_timing() -> None:
    assert server_timing({"auth": 0.0003, "prefill.queue": 0.0121}) == (
        "auth;dur=0.3, prefill.queue;dur=12.1"
    )


def test_a_client_that_takes_nothing_for_30_s_is_given_up() -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        import asyncio

        async def send(message) -> None:
            await asyncio.sleep(3600)

        async def silence() -> None:
            raise AssertionError("a waiting write is not silence")

        response = HttpResponse(send, "r1", clock)
        writing = asyncio.ensure_future(response.start(200, "text/plain", {}))
        await asyncio.sleep(1)
        with pytest.raises(DeadlineExceeded) as caught:
            await response.watch(silence)
        assert caught.value.reason == "client_stalled"
        assert clock.now() == pytest.approx(30, abs=0.1)
        writing.cancel()

    run_virtual(scenario(), clock)


async def test_a_large_body_is_written_in_parts() -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    response = HttpResponse(send, "r1", VirtualClock())
    await response.whole(200, [b"x" * 1000] * 200, {})
    assert dict(sent[0]["headers"])[b"content-length"] == b"200000"
    parts = [len(message["body"]) for message in sent[1:]]
    assert sum(parts) == 200_000
    assert max(parts) < 2 * PART_BYTES
    assert [message.get("more_body", False) for message in sent[1:]] == [True, True, True, False]
