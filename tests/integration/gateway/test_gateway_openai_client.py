"""The unchanged openai client against the real gateway process code, over HTTP and gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.pooling import Pooling
from baton.wire.v1 import failure_pb2, worker_pb2
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY, artifact

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path, aliases=("gpt-4o=demo",)) as running:
        await until_ready(running)
        yield running


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client, without the certificates of all authorities: reading them takes 30 ms."""
    http = openai.DefaultAsyncHttpxClient(verify=False)
    async with openai.AsyncOpenAI(
        base_url=f"{stack.root}/v1", api_key=KEY, max_retries=0, http_client=http
    ) as it:
        yield it


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        base_url=stack.root, headers=headers, timeout=60, verify=False
    ) as it:
        yield it


async def test_chat_completion(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stack.worker.num_cached = 16
    answer = await client.chat.completions.create(model="demo", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "demo"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 13
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 13
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16


async def test_chat_completion_streamed_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello there."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 13
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_several_choices(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stack.worker.texts = ["one", "two"]
    answer = await client.chat.completions.create(model="demo", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == ["one", "two"]
    stream = await client.chat.completions.create(model="demo", messages=MESSAGES, n=2, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["one", "two"]


@pytest.mark.parametrize("prompt", ["once upon", [111, 110, 99, 101], ["once"], [[111, 110]]])
async def test_completion(client: openai.AsyncOpenAI, prompt: object) -> None:
    answer = await client.completions.create(model="demo", prompt=prompt, max_tokens=5)  # type: ignore[call-overload]
    assert answer.choices[0].text == "Hello"
    assert answer.choices[0].finish_reason == "length"
    stream = await client.completions.create(  # type: ignore[call-overload]
        model="demo", prompt=prompt, max_tokens=100, stream=True
    )
    assert "".join([c.choices[0].text async for c in stream]) == "Hello there."


async def test_response(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="demo", input="hi", instructions="be brief", metadata={"a": "b"}
    )
    assert answer.output_text == "Hello there."
    assert answer.status == "completed"
    assert answer.store is False  # type: ignore[attr-defined]
    assert answer.instructions == "be brief"
    assert answer.metadata == {"a": "b"}
    assert answer.usage is not None
    assert answer.usage.output_tokens == 13


async def test_response_cut_by_max_output_tokens_is_incomplete(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="demo", input=[{"role": "user", "content": "hi"}], max_output_tokens=5
    )
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "Hello"


async def test_response_streamed_in_the_official_order(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="demo", input="hi", stream=True)
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    num_deltas = kinds.count("response.output_text.delta")
    assert num_deltas >= 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * num_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        "Hello there."
    )
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "Hello there."


async def test_the_response_stream_helper_follows_it(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="demo", input="hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "Hello there."


async def test_the_synchronous_client(stack: Stack) -> None:
    def talk() -> tuple[str | None, str, str, str]:
        with openai.OpenAI(base_url=f"{stack.root}/v1", api_key=KEY, max_retries=0) as client:
            whole = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)  # type: ignore[arg-type]
            chunks = client.chat.completions.create(
                model="gpt-4o",
                messages=MESSAGES,  # type: ignore[arg-type]
                stream=True,
            )
            streamed = "".join(c.choices[0].delta.content or "" for c in chunks)
            plain = client.completions.create(model="demo", prompt="x", max_tokens=50)
            response = client.responses.create(model="demo", input="hi")
            return (
                whole.choices[0].message.content, streamed, plain.choices[0].text,
                response.output_text,
            )  # fmt: skip

    assert await asyncio.to_thread(talk) == ("Hello there.",) * 4


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == ["demo", "gpt-4o"]
    assert (await client.models.retrieve("gpt-4o")).owned_by == "baton"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nothing")


async def test_headers_of_an_answer(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.quota.limits = failure_pb2.LimitState(
        limit_requests=60,
        remaining_requests=59,
        reset_requests_ms=1000,
        limit_tokens=1000,
        remaining_tokens=400,
        reset_tokens_ms=90_500,
    )
    answer = await http.post(
        "/v1/chat/completions",
        json={"model": "demo", "messages": MESSAGES},
        headers={"x-request-id": "my-id.1"},
    )
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-client-request-id"] == "my-id.1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "59"
    assert answer.headers["x-ratelimit-reset-tokens"] == "1m30.5s"
    assert int(answer.headers["openai-processing-ms"]) > 0
    timing = answer.headers["server-timing"]
    for stage in ("auth", "validate", "tokenize", "reserve", "pick", "prefill", "decode", "settle"):
        assert f"{stage};dur=" in timing
    assert stack.quota.settled[0].request_id == answer.headers["x-request-id"]


async def test_a_clients_request_id_comes_back_however_often_it_is_used(
    http: httpx.AsyncClient,
) -> None:
    body = {"model": "demo", "messages": MESSAGES}
    seen = []
    for given in ("same", "same", "bad id", "x" * 513):
        headers = {"x-request-id": given}
        for answer in (
            await http.post("/v1/chat/completions", json=body, headers=headers),
            await http.get("/v1/models", headers=headers),
        ):
            seen.append(answer.headers["x-request-id"])
            echoed = given if given == "same" else None
            assert answer.headers.get("x-client-request-id") == echoed
    assert len(set(seen)) == 8
    assert all(fresh.startswith("req_") for fresh in seen)


async def test_exceeding_a_limit_is_a_429_with_headers(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    limits = failure_pb2.LimitState(
        limit_requests=1, remaining_requests=0, reset_requests_ms=59_100
    )
    stack.quota.reserve_failure = LimitExceeded(
        "requests per minute: 1 used of 1", retry_after_s=59.1, limits=limits
    )
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="demo", messages=MESSAGES, stream=stream)  # type: ignore[call-overload]
        assert caught.value.code == "rate_limit_exceeded"
        headers = caught.value.response.headers
        assert headers["retry-after"] == "60"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] == "59.1s"
        assert headers["x-should-retry"] == "true"
        assert headers["x-request-id"]


async def test_errors_keep_their_status_and_name_the_field(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="demo", messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            functions=[{"name": "f"}],
        )
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "functions")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nothing", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as refused:
        await client.with_options(api_key="wrong").models.list()
    assert refused.value.code == "invalid_api_key"


async def test_an_unready_model_is_503_no_worker(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stack.router.models[0].workers[0].ready = False
    stack.router.failure = Unavailable("no worker is ready for this model", reason="no_worker")
    async with asyncio.timeout(60):
        while [model async for model in await client.models.list()]:
            await asyncio.sleep(0.02)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
    assert caught.value.status_code == 503
    assert caught.value.code == "no_worker"


async def test_an_error_after_the_first_token_is_one_event_without_done(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    stack.worker.texts, stack.worker.ends = ["x" * 500], False
    body = {"model": "demo", "messages": MESSAGES, "stream": True}
    lines = []
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            lines.append(line)
            if len(lines) == 10:
                await _break_protocol(stack)
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    errors = [json.loads(event) for event in events if "error" in event]
    assert len(errors) == 1
    assert errors[0]["error"]["code"] == "worker_lost"
    assert events[-1] != "[DONE]"
    assert json.loads(events[-1]) == errors[0]


async def test_a_broken_response_stream_ends_with_failed(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    stack.worker.texts, stack.worker.ends = ["x" * 500], False
    stream = await client.responses.create(model="demo", input="hi", stream=True)
    events = []
    async for event in stream:
        events.append(event)
        if len(events) == 8:
            await _break_protocol(stack)
    assert events[-1].type == "response.failed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_client_that_leaves_mid_stream_cancels_at_the_worker(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    stack.worker.texts = ["x" * 5000]
    body = {"model": "demo", "messages": MESSAGES, "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            break
    async with asyncio.timeout(60):
        while not (stack.worker.cancels and stack.quota.settled):
            await asyncio.sleep(0.01)
    assert stack.quota.settled[0].finish_reason == "cancelled"


async def test_a_client_that_leaves_before_the_first_token_cancels_too(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    stack.worker.prefill_s = 300
    body = {"model": "demo", "messages": MESSAGES}
    request = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
    async with asyncio.timeout(60):
        while not stack.worker.submits:
            await asyncio.sleep(0.01)
        request.cancel()
        while not (stack.worker.cancels and stack.quota.settled):
            await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await request


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("POST", "//v1//chat/completions", 404, "not_found"),
        ("GET", "/v1/%2e%2e/metrics", 404, "not_found"),
        ("GET", "/v1/../metrics", 404, "not_found"),
    ],
)
async def test_other_paths(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.headers["x-request-id"]
    if status == 405:
        assert "POST" in answer.headers["allow"]


async def test_bodies_that_are_no_requests(http: httpx.AsyncClient) -> None:
    path = "/v1/chat/completions"
    too_large = await http.post(path, content=b"x" * (8 * 1024 * 1024 + 1))
    assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "body_too_large")
    packed = await http.post(path, content=b"x", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415
    broken = await http.post(path, content=b'{"model":')
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")


async def test_readyz_names_what_is_missing(stack: Stack, http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200
    stack.router.models = []
    async with asyncio.timeout(60):
        while (answer := await http.get("/readyz")).status_code == 200:
            await asyncio.sleep(0.02)
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["no model has a ready worker"]


async def test_quota_that_is_down_leaves_cached_keys_usable_for_reading(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    await client.models.list()
    stack.quota.failure = Unavailable("down")
    assert [model.id async for model in await client.models.list()]


async def test_drain_lets_a_running_stream_end(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stack.worker.texts = ["x" * 60]
    stream = await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        stack.stopping.set()
    assert text == "x" * 60


async def test_streams_that_outlast_the_drain_are_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.__main__.LAST_SETTLES_S", 60.0)
    async with running_stack(tmp_path, drain_s=1.0) as stack:
        await until_ready(stack)
        stack.worker.texts = ["x" * 2000]
        stack.quota.settle_delay_s = 0.02
        async with openai.AsyncOpenAI(base_url=f"{stack.root}/v1", api_key=KEY) as client:
            stream = await client.completions.create(
                model="demo", prompt="x", max_tokens=2000, stream=True
            )
            text = ""
            with pytest.raises(openai.APIError) as caught:
                async for chunk in stream:
                    text += chunk.choices[0].text
                    if len(text) > 10:
                        stack.stopping.set()
            assert caught.value.code == "draining"
    # Where the acknowledgement came late, the outbox has settled it again.
    (record,) = {record.request_id: record for record in stack.quota.settled}.values()
    assert record.num_output_tokens >= len(text) > 10


async def test_a_drained_gateway_says_bye_to_its_workers(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        await until_ready(stack)
        async with openai.AsyncOpenAI(base_url=f"{stack.root}/v1", api_key=KEY) as client:
            await client.completions.create(model="demo", prompt="x")
        assert not stack.worker.said_bye
    assert stack.worker.said_bye


async def _break_protocol(stack: Stack) -> None:
    """The worker skips tokens of the open attempt, which can only be a loss, and every worker that
    is tried next is lost too."""
    stack.router.ignores_exclusion = True
    for worker in stack.workers.values():
        worker.refusal = Unavailable("the worker was lost", reason="worker_lost")
    handle = stack.worker.submits[-1].handle
    step = worker_pb2.Step(handles=[handle], choices=[0], first_index=[4000], ids=[1])
    await stack.worker.say(worker_pb2.WorkerFrame(step=step))


async def test_embeddings(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stack.tokenizer.data = artifact(pooling=Pooling("last", 2))
    answer = await client.embeddings.create(model="demo", input=["hi", "abc"])
    assert [each.embedding for each in answer.data] == [[104.0, 2.0], [97.0, 3.0]]
    assert answer.usage.total_tokens == 5
    told = await client.embeddings.create(model="demo", input="hi", encoding_format="float")
    assert told.data[0].embedding == [104.0, 2.0]
    with pytest.raises(openai.BadRequestError, match="gives vectors and no text"):
        await client.chat.completions.create(model="demo", messages=MESSAGES)
