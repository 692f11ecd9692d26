"""Headers, bodies and responses at the HTTP edge."""

import asyncio
import random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import DeadlineExceeded, InvalidRequest, LimitExceeded, Overloaded
from baton.wire.v1 import failure_pb2
from services.gateway.http.request import (
    Headers,
    RequestBody,
    authorization_of,
    new_request_id,
    own_headers,
    timeout_of,
)
from services.gateway.http.response import (
    HttpResponse,
    duration,
    error_headers,
    limit_headers,
    server_timing,
)
from services.gateway.http.trace_border import CLIENT_HEADER, TraceBorder
from services.gateway.openai.collected import PART_BYTES


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


def test_every_request_has_an_id_of_its_own() -> None:
    rng = random.Random(1)
    fresh = {new_request_id(rng) for _ in range(10)}
    assert len(fresh) == 10
    assert all(each.startswith("req_") and len(each) == 36 for each in fresh)


@pytest.mark.parametrize("given", ["abc", "A-b_c.1:2", "a/b", "x" * 512])
def test_an_answer_repeats_the_clients_id_beside_its_own(given: str) -> None:
    both = {"x-request-id": "req_1", "x-client-request-id": given}
    assert own_headers(headers(x_request_id=given), "req_1") == both
    assert own_headers(headers(x_client_request_id=given), "req_1") == both
    assert own_headers(headers(x_request_id="proxy", x_client_request_id=given), "req_1") == both


@pytest.mark.parametrize("given", ["", "a b", "a\nb", "é", "x" * 513])
def test_a_clients_id_that_is_long_or_not_plain_is_not_repeated(given: str) -> None:
    assert own_headers(headers(x_request_id=given), "req_1") == {"x-request-id": "req_1"}


def test_two_authorization_headers_are_no_key() -> None:
    twice = Headers([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")])
    assert authorization_of(twice) == "Bearer a,Bearer b"
    assert authorization_of(headers()) is None


def test_a_clients_trace_is_a_link_and_decides_nothing() -> None:
    good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    border = TraceBorder()
    assert border.parent(headers(traceparent=good)) == ""
    assert border.links(headers(traceparent=good)) == ((good, "client"),)
    assert border.links(headers(traceparent="00-xyz")) == ()
    assert border.links(headers()) == ()
    # What Envoy would say is nobody else's to say; a link is all that comes of it.
    assert border.links(headers(**{CLIENT_HEADER: good})) == ()


def test_a_trusted_callers_trace_goes_on_here() -> None:
    good, clients = ("00-" + "a" * 32 + "-" + kind * 16 + "-01" for kind in "bc")
    border = TraceBorder(trusts_callers=True)
    assert border.parent(headers(traceparent=good)) == good
    assert border.links(headers(traceparent=good)) == ()
    told = headers(traceparent=good, **{CLIENT_HEADER: clients})
    assert border.links(told) == ((clients, "client"),)
    assert border.parent(headers(traceparent="00-xyz")) == ""


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

        response = HttpResponse(send, {}, clock)
        writing = asyncio.ensure_future(response.start(200, "text/plain", {}))
        await asyncio.sleep(1)
        with pytest.raises(DeadlineExceeded) as caught:
            await response.watch(silence)
        assert caught.value.reason == "client_stalled"
        assert clock.now() == pytest.approx(30, abs=0.1)
        writing.cancel()

    run_virtual(scenario(), clock)


class Pieces:
    """A writer that has room, and keeps what it writes."""

    has_room = True

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, piece: bytes) -> None:
        self.pieces.append(piece)


async def test_an_opening_leaves_with_the_next_piece_or_at_the_end_of_the_turn() -> None:
    async def send(message: dict[str, object]) -> None:
        """Take it."""

    for follows in (True, False):
        writer = Pieces()
        response = HttpResponse(send, {}, VirtualClock(), writer=writer)
        await response.start(200, "text/event-stream", {})
        await response.write_opening(b"opening,")
        if follows:
            await response.write(b"text,")
            assert writer.pieces == [b"opening,text,"]
        else:
            await asyncio.sleep(0)
            assert writer.pieces == [b"opening,"]
        await asyncio.sleep(0)
        await response.write(b"more")
        assert writer.pieces[1:] == [b"more"]


async def test_an_opening_is_not_lost_when_the_answer_ends_with_it() -> None:
    sent: list[object] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message.get("body"))

    response = HttpResponse(send, {}, VirtualClock(), writer=Pieces())
    await response.start(200, "text/event-stream", {})
    await response.write_opening(b"opening,")
    await response.end(b"end")
    assert sent == [None, b"opening,end"]


async def test_a_large_body_is_written_in_parts() -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    response = HttpResponse(send, {}, VirtualClock())
    await response.whole(200, [b"x" * 1000] * 200, {})
    assert dict(sent[0]["headers"])[b"content-length"] == b"200000"
    parts = [len(message["body"]) for message in sent[1:]]
    assert sum(parts) == 200_000
    assert max(parts) < 2 * PART_BYTES
    assert [message.get("more_body", False) for message in sent[1:]] == [True, True, True, False]


@pytest.mark.parametrize(
    ("media_type", "is_refused"),
    [
        ("application/json", False),
        ("Application/JSON; charset=utf-8", False),
        ("application/vnd.api+json", False),
        ("application/x-www-form-urlencoded", False),
        ("text/plain", False),
        ("multipart/form-data; boundary=x", True),
        ("image/png", True),
        ("application/xml", True),
        ("application/x-ndjson", True),
    ],
)
async def test_only_a_body_that_is_said_not_to_be_json_is_refused(
    media_type: str, is_refused: bool
) -> None:
    read = RequestBody(headers(content_type=media_type), receiver(body(b"{}")), 10).read
    if not is_refused:
        assert await read(lambda num_bytes: None) == b"{}"
        return
    with pytest.raises(InvalidRequest) as caught:
        await read(lambda num_bytes: None)
    assert caught.value.row.http_status == 415
    assert caught.value.param == "content-type"
