"""The ASGI app on virtual time: held headers, keep-alive, stalled and gone clients."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from baton.wire.failures import NoRoom, Unavailable
from baton.wire.v1.failure_pb2 import LimitState
from services.gateway.app import App
from services.gateway.readiness import REACHED_WITHIN_S
from services.gateway.request.limits import Limits
from services.gateway.tenants.auth import STALE_S
from tests.unit.gateway.fakes import KEY, Fleet, simulate

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Client:
    """One HTTP client: sends a request, keeps what comes, may stop reading or leave."""

    def __init__(
        self, fields: dict[str, Any], path: str = "/v1/chat/completions", method: str = "POST"
    ) -> None:
        self.body = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(b"authorization", f"Bearer {KEY}".encode())],
        }
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": msgspec.json.encode(fields)}
        ]

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            assert not self.status, "one status"
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            assert self.status, "headers first"
            assert not self.ended, "nothing after the end"
            self.body += message["body"]
            self.ended = not message.get("more_body")

    @property
    def events(self) -> list[str]:
        parts = self.body.decode().split("\n\n")
        return [part.removeprefix("data: ") for part in parts if part.startswith("data: ")]

    @property
    def comments(self) -> int:
        return self.body.count(b": keep-alive\n\n")


class Socket:
    """The writer of a client's connection; without room nothing more is accepted."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.num_pieces = 0
        self.first_piece = b""

    @property
    def has_room(self) -> bool:
        return self.client.reads.is_set()

    def write(self, piece: bytes) -> None:
        assert self.client.status, "headers first"
        assert not self.client.ended, "nothing after the end"
        self.client.body += piece
        self.num_pieces += 1
        self.first_piece = self.first_piece or piece


def choice_of(client: Client, number: int) -> list[dict[str, Any]]:
    """What a streamed answer says of one choice, in order."""
    said = [json.loads(event)["choices"][0] for event in client.events[:-1]]
    return [each for each in said if each["index"] == number]


def text_of(client: Client) -> str:
    deltas = [said["delta"] for said in choice_of(client, 0)]
    return "".join(delta.get("content", "") for delta in deltas)


def app_of(fleet: Fleet, max_open_requests: int = 100, trace_url: str = "") -> App:
    return App(
        fleet.gateway,
        max_body_bytes=1_000_000,
        max_open_requests=max_open_requests,
        deadline_s=600.0,
        trace_url=trace_url,
    )


async def serve(app: App, client: Client) -> None:
    await app(client.scope, client.receive, client.send)


def test_an_answer_tells_where_its_trace_is_where_there_is_a_page_of_it() -> None:
    async def scenario(fleet: Fleet) -> None:
        client, other = Client(CHAT), Client(CHAT)
        await serve(app_of(fleet, trace_url="http://127.0.0.1:8081/#/requests/"), client)
        own_id = client.headers["x-request-id"]
        assert client.headers["x-trace-url"] == f"http://127.0.0.1:8081/#/requests/{own_id}"
        await serve(app_of(fleet), other)
        assert "x-trace-url" not in other.headers

    simulate(scenario)


def test_headers_are_held_until_the_first_token() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 5
        client = Client(CHAT)
        task = fleet.tasks.create_task(serve(app_of(fleet), client))
        await asyncio.sleep(4.9)
        assert not client.status
        await task
        assert client.status == 200
        assert "prefill;dur=50" in client.headers["server-timing"]
        assert "decode" not in client.headers["server-timing"]
        assert client.events[-1] == "[DONE]"
        assert client.ended

    simulate(scenario)


def test_a_refusal_before_the_first_token_keeps_its_status() -> None:
    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.refusal = NoRoom("full", retry_after_s=0.3)
        client = Client(CHAT)
        await serve(app_of(fleet), client)
        assert client.status == 503
        assert client.headers["content-type"] == "application/json"
        assert json.loads(client.body)["error"]["code"] in ("no_worker", "no_room")

    simulate(scenario)


def test_an_error_tells_its_stages_and_the_limits_that_are_known() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.limits = LimitState(limit_requests=60, remaining_requests=59)
        for worker in fleet.workers.values():
            worker.refusal = NoRoom("full", retry_after_s=0.3)
        late, early = Client(CHAT), Client(CHAT | {"temperature": 3})
        await serve(app_of(fleet), late)
        assert late.status == 503
        assert "reserve;dur=" in late.headers["server-timing"]
        assert late.headers["x-ratelimit-remaining-requests"] == "59"
        await serve(app_of(fleet), early)
        assert early.status == 400
        timing = early.headers["server-timing"]
        assert timing.startswith("auth;dur=")
        assert "validate;dur=" in timing
        assert "reserve" not in timing
        assert "x-ratelimit-limit-requests" not in early.headers

    simulate(scenario)


def test_a_stream_that_is_kept_alive_has_its_limits_too() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.limits = LimitState(limit_requests=60, remaining_requests=59)
        fleet.worker.prefill_s = 15
        client = Client(CHAT)
        await serve(app_of(fleet), client)
        assert client.comments == 1
        assert client.headers["x-ratelimit-remaining-requests"] == "59"
        assert "pick;dur=" in client.headers["server-timing"]

    simulate(scenario)


def test_a_slow_start_is_kept_alive_by_comments_after_ten_seconds() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 25
        client = Client(CHAT)
        task = fleet.tasks.create_task(serve(app_of(fleet), client))
        await asyncio.sleep(10.5)
        assert (client.status, client.comments) == (200, 1)
        await task
        assert client.comments == 2
        assert client.events[-1] == "[DONE]"

    simulate(scenario)


def explaining(**fields: Any) -> Client:
    """A client that asks for the explanation of its workers."""
    client = Client(CHAT | fields)
    client.scope["headers"].append((b"x-explain", b"1"))
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_explains_its_pick_when_it_was_asked_to(stream: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_stages = {"prefill.compute": 0.03}
        client, other = explaining(stream=stream), Client(CHAT)
        await serve(app_of(fleet), client)
        (pick,) = json.loads(client.headers["x-explanation"])["picks"]
        assert (pick["decode"], pick["remark"]) == ("w1", "only one")
        assert pick["measured_s"]["prefill"] == 0.03
        await serve(app_of(fleet), other)
        assert "x-explanation" not in other.headers

    simulate(scenario)


def test_an_explanation_that_comes_after_the_headers_is_a_comment() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 25
        client = explaining()
        await serve(app_of(fleet), client)
        (comment,) = [
            part.removeprefix(": x-explanation: ")
            for part in client.body.decode().split("\n\n")
            if part.startswith(": x-explanation: ")
        ]
        assert json.loads(comment)["picks"][0]["decode"] == "w1"
        assert "x-explanation" not in client.headers

    simulate(scenario)


def test_a_failure_after_early_headers_is_one_error_event() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 1000
        client = Client(CHAT)
        await serve(app_of(fleet), client)
        assert client.status == 200
        (event,) = client.events
        assert json.loads(event)["error"]["code"] == "deadline_exceeded"
        assert client.ended

    simulate(scenario)


def test_a_body_that_does_not_stream_is_never_kept_alive() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 25
        client = Client({**CHAT, "stream": False})
        await serve(app_of(fleet), client)
        assert client.comments == 0
        assert json.loads(client.body)["choices"][0]["message"]["content"] == "Hello there."

    simulate(scenario)


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"stop": "re."}, {"logprobs": True}])
def test_a_stream_that_is_written_at_once_has_the_bytes_of_one_that_waits(
    fields: dict[str, Any],
) -> None:
    async def scenario(fleet: Fleet) -> None:
        waiting, client = Client(CHAT | fields), Client(CHAT | fields)
        await serve(app_of(fleet), waiting)
        socket = client.scope["baton.writer"] = Socket(client)
        await serve(app_of(fleet), client)
        assert socket.num_pieces >= 5
        for number in range(fields.get("n", 1)):
            assert choice_of(client, number) == choice_of(waiting, number)
        assert client.events[-1] == "[DONE]"

    simulate(scenario)


def test_the_opening_of_a_stream_leaves_with_its_first_text() -> None:
    async def scenario(fleet: Fleet) -> None:
        client = Client(CHAT)
        socket = client.scope["baton.writer"] = Socket(client)
        await serve(app_of(fleet), client)
        assert b'"role"' in socket.first_piece
        assert b'"content":"H' in socket.first_piece

    simulate(scenario)


def test_a_stream_goes_on_in_order_after_its_client_read_nothing_for_a_while() -> None:
    async def scenario(fleet: Fleet) -> None:
        text = "".join(chr(65 + index % 26) for index in range(500))
        fleet.worker.texts, fleet.worker.step_s = [text], 0.001
        client = Client(CHAT)
        socket = client.scope["baton.writer"] = Socket(client)
        task = fleet.tasks.create_task(serve(app_of(fleet), client))
        for num_pieces in (10, 250):
            while socket.num_pieces < num_pieces:
                await asyncio.sleep(0.001)
            client.reads.clear()
            await asyncio.sleep(1)
            num_read = client.body.count(b'"content"') - 1
            assert max(fleet.worker.num_written.values()) <= num_read + 64
            client.reads.set()
        await task
        assert text_of(client) == text

    simulate(scenario)


def test_a_client_that_stops_reading_is_cut_after_30_s_and_its_work_freed() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        client = Client(CHAT)
        task = fleet.tasks.create_task(serve(app_of(fleet), client))
        while not client.body:
            await asyncio.sleep(0.01)
        client.reads.clear()
        cuts: list[float] = []
        client.scope["baton.abort"] = lambda: cuts.append(fleet.clock.now())
        before = fleet.clock.now()
        await task
        assert len(cuts) == 1, "closing would wait for the client for ever"
        assert fleet.clock.now() - before == pytest.approx(30, abs=0.2)
        assert fleet.worker.cancels
        assert fleet.record.finish_reason == "client_stalled"

    simulate(scenario)


def test_a_client_that_leaves_ends_the_request_at_once() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 20
        client = Client(CHAT)
        app = app_of(fleet)
        task = fleet.tasks.create_task(serve(app, client))
        await asyncio.sleep(1)
        client.gone.set()
        await task
        assert fleet.clock.now() < 1.2
        assert fleet.worker.cancels
        assert fleet.record.finish_reason == "cancelled"
        assert app.num_open == 0

    simulate(scenario)


def test_too_many_open_requests_are_refused() -> None:
    async def scenario(fleet: Fleet) -> None:
        app = app_of(fleet, max_open_requests=1)
        first, second = Client(CHAT), Client(CHAT)
        task = fleet.tasks.create_task(serve(app, first))
        await asyncio.sleep(0.01)
        await serve(app, second)
        assert second.status == 503
        assert json.loads(second.body)["error"]["code"] == "overloaded"
        await task
        assert first.status == 200

    simulate(scenario)


def refused(reason: str, status: int) -> float:
    labels = {"reason": reason, "status": str(status)}
    return REGISTRY.get_sample_value("baton_gateway_refused_requests_total", labels) or 0.0


@pytest.mark.parametrize(
    ("reason", "status", "changes", "body"),
    [
        ("invalid_api_key", 401, {"headers": [(b"authorization", b"Bearer bt-wrong")]}, {}),
        ("missing_api_key", 401, {"headers": []}, {}),
        ("missing_api_key", 401, {"headers": [], "method": "GET", "path": "/v1/models"}, {}),
        ("body_too_large", 413, {}, {"user": "x" * 1_000_000}),
        ("unsupported_parameter", 400, {}, {"no_such_field": 1}),
        ("model_not_found", 404, {}, {"model": "no-such-model"}),
        ("not_found", 404, {"path": "/v1/no-such-path"}, {}),
        ("method_not_allowed", 405, {"method": "DELETE", "path": "/v1/models"}, {}),
        ("invalid_value", 400, {"headers": [(b"x-request-timeout-s", b"never")]}, {}),
        ("invalid_value", 400, {"headers": [(b"x-explain", b"please")]}, {}),
    ],
)
def test_a_refusal_before_the_model_is_known_is_counted_by_its_reason(
    reason: str, status: int, changes: dict[str, Any], body: dict[str, Any]
) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = Client(CHAT | body)
        client.scope |= changes
        before = refused(reason, status)
        await serve(app_of(fleet), client)
        assert client.status == status
        assert refused(reason, status) == before + 1

    simulate(scenario)


def test_a_request_that_fails_later_is_not_counted_among_the_refused() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.failure = NoRoom("full")
        client = Client(CHAT)
        before = refused("no_room", 503)
        await serve(app_of(fleet), client)
        assert client.status == 503
        assert refused("no_room", 503) == before

    simulate(scenario)


async def readyz(app: App) -> Client:
    client = Client({}, path="/readyz", method="GET")
    await serve(app, client)
    return client


def test_a_gateway_says_that_its_fleet_is_full_until_the_wait_is_half_as_long() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, (model,) = app_of(fleet), fleet.router.models
        for wait_s, is_full in ((1.9, False), (2.0, True), (1.1, True), (0.9, False), (1.9, False)):
            model.predicted_wait_s[:] = [wait_s]
            await asyncio.sleep(0.2)
            client = await readyz(app)
            assert client.status == 200, "it serves all the same"
            assert ("x-envoy-degraded" in client.headers) == is_full, wait_s

    simulate(scenario)


def test_a_gateway_without_other_regions_need_not_say_that_it_is_full() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.models[0].predicted_wait_s[:] = [100.0]
        await asyncio.sleep(0.2)
        assert "x-envoy-degraded" not in (await readyz(app_of(fleet))).headers

    simulate(scenario, limits=Limits(full_wait_s=0))


def test_a_draining_gateway_is_not_ready_but_serves_what_still_comes() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.gateway.readiness.draining = True
        client = Client(CHAT)
        await serve(app_of(fleet), client)
        assert client.status == 200
        assert "draining" in fleet.gateway.unready_reasons()

    simulate(scenario)


def test_a_request_that_is_cut_off_gets_an_error_and_is_billed() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.step_s = 1.0
        app, client = app_of(fleet), Client(CHAT)
        task = fleet.tasks.create_task(serve(app, client))
        await asyncio.sleep(3)
        assert not await app.idle(0)
        app.cut_off()
        await task
        assert client.body.count(b'"code":"draining"') == 1
        assert b"[DONE]" not in client.body
        (record,) = fleet.quota.settled
        assert record.num_output_tokens > 0
        assert record.finish_reason == "draining"

    simulate(scenario)


def test_closing_says_bye_on_every_stream() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        await fleet.gateway.close()
        assert fleet.worker.said_bye

    simulate(scenario)


def test_a_short_silence_of_what_all_gateways_need_does_not_take_them_out_together() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert fleet.gateway.unready_reasons() == []
        fleet.quota.failure = Unavailable("busy")
        await asyncio.sleep(REACHED_WITHIN_S / 2)
        assert fleet.gateway.unready_reasons() == []

    simulate(scenario)


def test_a_gateway_that_knows_keys_stays_ready_without_quota_and_says_that_it_is_degraded() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, ready = app_of(fleet), Client({}, path="/readyz", method="GET")
        await fleet.chat()
        fleet.quota.failure = Unavailable("down")
        await asyncio.sleep(REACHED_WITHIN_S + 1.2)
        await serve(app, ready)
        assert ready.status == 200
        assert json.loads(ready.body) == {
            "status": "degraded",
            "reasons": ["quota service unreachable"],
        }
        sink = await fleet.chat()
        assert sink.text() == "Hello there."
        await asyncio.sleep(STALE_S)
        assert fleet.gateway.unready_reasons() == ["quota service unreachable"]

    simulate(scenario)


def test_a_question_about_readiness_asks_nobody() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, num_probes = app_of(fleet), fleet.quota.num_probes
        for _ in range(100):
            await serve(app, Client({}, path="/readyz", method="GET"))
        assert fleet.quota.num_probes == num_probes

    simulate(scenario)


def test_readiness_names_every_missing_part() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert fleet.gateway.unready_reasons() == []
        fleet.quota.failure = Unavailable("down")
        fleet.tokenizer.failure = Unavailable("down")
        fleet.router.models = []
        await asyncio.sleep(REACHED_WITHIN_S + 1.2)
        assert fleet.gateway.unready_reasons() == [
            "quota service unreachable",
            "tokenizer service unreachable",
            "no model has a ready worker",
        ]

    simulate(scenario)


@pytest.mark.parametrize("text", ["a\n\ndata: [DONE]\n\n", "event: error\r\ndata: x"])
def test_text_that_looks_like_an_event_stays_inside_one(text: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = [text]
        client = Client(CHAT)
        await serve(app_of(fleet), client)
        chunks = [json.loads(event) for event in client.events[:-1]]
        contents = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(contents) == text
        assert client.events.count("[DONE]") == 1

    simulate(scenario)


def test_a_request_of_a_client_that_has_left_is_not_begun() -> None:
    async def scenario(fleet: Fleet) -> None:
        client = Client(CHAT)
        client.scope["baton.has_left"] = lambda: True
        await serve(app_of(fleet), client)
        assert client.status == 499
        assert fleet.quota.num_authenticated == 0

    simulate(scenario)


@pytest.mark.parametrize(
    ("path", "fields", "nearest"),
    [
        ("/v1/chat/completion", {}, "/v1/chat/completions"),
        ("/v1/chat/completions", {"max_token": 5}, "max_tokens"),
        ("/v1/chat/completions", {"model": "dem"}, "demo"),
        ("/v1/nothing/like/it/at/all", {}, None),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    path: str, fields: dict[str, Any], nearest: str | None
) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = Client(CHAT | fields, path)
        await serve(app_of(fleet), client)
        message = msgspec.json.decode(client.body)["error"]["message"]
        if nearest is None:
            assert "did you mean" not in message
        else:
            assert message.endswith(f"; did you mean {nearest}?")

    simulate(scenario)


def test_the_root_says_what_answers_and_health_is_readiness() -> None:
    async def scenario(fleet: Fleet) -> None:
        root, health = Client({}, "/", "GET"), Client({}, "/health", "GET")
        await serve(app_of(fleet), root)
        await serve(app_of(fleet), health)
        about = msgspec.json.decode(root.body)
        assert "/v1/chat/completions" in about["paths"]
        assert msgspec.json.decode(health.body)["status"] == "ready"

    simulate(scenario)


def cancel(request_id: str) -> Client:
    return Client({}, f"/v1/requests/{request_id}", "DELETE")


def endless(fleet: Fleet, **fields: Any) -> Client:
    fleet.worker.texts = ["x" * 2000]
    return Client({**CHAT, "max_tokens": 2000, **fields})


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
def test_a_running_request_is_cancelled_by_its_id(prefix: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        app, client = app_of(fleet), endless(fleet)
        serving = fleet.tasks.create_task(serve(app, client))
        await asyncio.sleep(1)
        own_id = client.headers["x-request-id"]
        asked = cancel(prefix + own_id)
        await serve(app, asked)
        assert (asked.status, json.loads(asked.body)["status"]) == (200, "cancelled")
        await serving
        assert json.loads(client.events[-1])["error"]["code"] == "cancelled"
        assert fleet.record.finish_reason == "cancelled"
        assert len(fleet.worker.cancels) == 1
        again = cancel(own_id)
        await serve(app, again)
        assert (again.status, json.loads(again.body)["error"]["code"]) == (404, "not_found")

    simulate(scenario)


def test_a_whole_answer_that_is_cancelled_is_499() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, client = app_of(fleet), endless(fleet, stream=False)
        serving = fleet.tasks.create_task(serve(app, client))
        await asyncio.sleep(1)
        [trace] = fleet.gateway.auditor.running()
        await serve(app, cancel(trace.request_id))
        await serving
        assert client.status == 499

    simulate(scenario)


def test_nobody_cancels_a_request_of_another_tenant() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, client = app_of(fleet), endless(fleet)
        fleet.tasks.create_task(serve(app, client))
        await asyncio.sleep(1)
        fleet.quota.principal.tenant = "other"
        await asyncio.sleep(6)
        asked = cancel(client.headers["x-request-id"])
        await serve(app, asked)
        assert asked.status == 404
        assert not fleet.worker.cancels

    simulate(scenario)


def test_a_request_of_another_gateway_is_cancelled_through_the_routers() -> None:
    async def scenario(fleet: Fleet) -> None:
        app, client = app_of(fleet), endless(fleet)
        serving = fleet.tasks.create_task(serve(app, client))
        await asyncio.sleep(1)
        fleet.gateway._buckets.num_gateways = 2
        elsewhere = cancel("req_elsewhere")
        await serve(app, elsewhere)
        assert (elsewhere.status, json.loads(elsewhere.body)["status"]) == (202, "cancelling")
        [told] = fleet.router.cancelled
        assert (told.request_id, told.tenant) == ("req_elsewhere", "acme")
        await asyncio.sleep(1)
        assert not serving.done()
        told.request_id = client.headers["x-request-id"]
        await asyncio.sleep(0.2)
        assert serving.done()
        assert json.loads(client.events[-1])["error"]["code"] == "cancelled"

    simulate(scenario)
