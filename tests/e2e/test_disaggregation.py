"""What makes it disaggregated: one trace over all processes, exact blocks, batching, no leaks."""

import asyncio
import time
from collections.abc import Iterable, Iterator

import httpx
import pytest

from baton.page.span_store import SpanStore, StoredSpan
from tests import needs
from tests.e2e.conftest import wait_until

BLOCK = 16
# The span of a whole request.
ROOT = "chat baton-demo"
SYSTEM = "You answer questions about serving. " * 25


def ask(stack, question: str, system: str = "", **more):
    messages = [{"role": "user", "content": question}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return stack.client().chat.completions.with_raw_response.create(
        model="baton-demo", messages=messages, temperature=0, **more
    )


def spans_of(stack, request_id: str) -> dict[str, StoredSpan]:
    """By name, once every process has told its own."""
    with SpanStore(stack.home.spans) as store:
        wait_until(
            lambda: (
                {ROOT, "decode", "prefill.compute"}
                <= {span.name for span in store.of_request(request_id)}
            )
        )
        wait_until(lambda: len(services_of(store.of_request(request_id))) >= NUM_SERVICES)
        return {span.name: span for span in store.of_request(request_id)}


NUM_SERVICES = 6


def services_of(spans: Iterable[StoredSpan]) -> set[str]:
    return {span.service.split("-1")[0].split("-2")[0] for span in spans}


PARENTS = {
    "auth": ROOT,
    "validate": ROOT,
    "tokenize": ROOT,
    "reserve": ROOT,
    "pick": ROOT,
    "settle": ROOT,
    "attempt": ROOT,
    "decode": "attempt",
    "handoff": "decode",
    "prefill": "handoff",
    "prefill.queue": "prefill",
    "prefill.compute": "prefill",
}


def test_one_trace_has_every_service_with_the_right_parents(stack) -> None:
    answer = ask(stack, "What is TTFT?")
    spans = spans_of(stack, answer.headers["x-request-id"])
    assert len({span.trace_id for span in spans.values()}) == 1
    for child, parent in PARENTS.items():
        assert spans[child].parent_id == spans[parent].span_id, child
    services = services_of(spans.values())
    assert {"gateway", "quota", "tokenizer", "router"} <= services
    assert any("decode" in service for service in services)
    assert any("prefill" in service for service in services)


def test_decode_receives_exactly_the_blocks_that_its_cache_lacks(stack) -> None:
    def received() -> float:
        return sum(
            stack.metric(name, "baton_handoff_blocks_total", direction="received")
            for name in stack.workers()
            if name.startswith("decode")
        )

    def num_indexed() -> float:
        return stack.metric("router", "baton_router_index_hashes")

    marker = f"{time.time_ns()} "
    before, had = received(), num_indexed()
    first = ask(stack, "What is TTFT?", marker + SYSTEM).parse()
    num_blocks = -(-first.usage.prompt_tokens // BLOCK)
    wait_until(lambda: received() - before >= num_blocks)
    assert received() - before == num_blocks
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    # Workers tell the router of their caches a moment later: one of each pool has the whole blocks.
    wait_until(lambda: num_indexed() - had >= 2 * (first.usage.prompt_tokens // BLOCK))

    before = received()
    second = ask(stack, "What is a lease?", marker + SYSTEM).parse()
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached > 0
    assert cached % BLOCK == 0
    num_blocks = -(-second.usage.prompt_tokens // BLOCK) - cached // BLOCK
    wait_until(lambda: received() - before >= num_blocks)
    assert received() - before == num_blocks


@needs.linux
def test_workers_of_one_host_hand_over_in_shared_memory(stack) -> None:
    def received(transport: str) -> float:
        return sum(
            stack.metric(
                name, "baton_handoff_bytes_total", direction="received", transport=transport
            )
            for name in stack.workers()
            if name.startswith("decode")
        )

    answer = ask(stack, f"{time.time_ns()} what is a block?")

    wait_until(lambda: received("shm") > 0)
    assert received("grpc") == 0
    span = spans_of(stack, answer.headers["x-request-id"])["handoff"]
    assert span.attributes["baton.transport"] == "shm"


async def test_32_concurrent_streams_finish_with_the_right_text_in_one_batch(
    stack, reference
) -> None:
    question = "Tell me the life of a request."
    text, _ = reference(question, 400)
    steps_before = _large_steps(stack)

    async def one(client) -> str:
        stream = await client.chat.completions.create(
            model="baton-demo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=400,
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with stack.async_client() as client:
        texts = await asyncio.gather(*(one(client) for _ in range(32)))
    assert set(texts) == {text}
    assert _large_steps(stack) > steps_before


def _large_steps(stack) -> float:
    """Engine steps of decode workers with more than 8 sequences."""
    name = "baton_step_batch_size_bucket"
    return sum(
        stack.metric(worker, name, le="+Inf") - stack.metric(worker, name, le="8.0")
        for worker in stack.workers()
        if worker.startswith("decode")
    )


def stream_request(stack, question: str, max_tokens: int = 400) -> dict:
    return {
        "method": "POST",
        "url": stack.base_url + "/chat/completions",
        "headers": {"Authorization": f"Bearer {stack.api_key}"},
        "json": {
            "model": "baton-demo",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
        },
    }


@pytest.fixture
def idle_blocks(stack) -> Iterator[dict[str, float]]:
    """Used blocks before the test; waits until the workers are back there after it."""
    wait_until(lambda: all(count == 0 for count in stack.used_blocks().values()))
    before = stack.used_blocks()
    yield before
    wait_until(lambda: stack.used_blocks() == before)


def test_client_that_leaves_in_mid_stream_frees_its_blocks(stack, idle_blocks) -> None:
    with httpx.Client(timeout=120) as client:
        with client.stream(**stream_request(stack, "Tell me the life of a request.")) as answer:
            lines = answer.iter_lines()
            for _ in range(6):
                next(lines)


async def test_clients_that_leave_at_any_moment_free_their_blocks(stack, idle_blocks) -> None:
    """Closes after 0 to 200 ms: queued, tokenizing, in prefill, in handoff, decoding."""
    question = "word " * 900

    async def leave_after(delay_s: float) -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            request = client.build_request(**stream_request(stack, f"{delay_s} {question}"))
            task = asyncio.create_task(client.send(request, stream=True))
            await asyncio.sleep(delay_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(leave_after(number * 0.01) for number in range(20)))


def test_trace_command_prints_the_waterfall(stack) -> None:
    request_id = ask(stack, "What is TTFT?").headers["x-request-id"]
    result = stack.command("trace", request_id)
    assert result.returncode == 0, result.stdout
    for name in (ROOT, "decode", "prefill.compute"):
        assert name in result.stdout


def test_stages_in_the_usage_record_add_up_to_the_wall_time(stack) -> None:
    ask(stack, "What is a lease?")
    started = time.monotonic()
    answer = ask(stack, "What is TTFT?")
    wall_s = time.monotonic() - started
    request_id = answer.headers["x-request-id"]
    wait_until(lambda: stack.usage_records(request_id))
    (record,) = stack.usage_records(request_id)
    usage = answer.parse().usage
    assert record["num_prompt_tokens"] == usage.prompt_tokens
    assert record["num_output_tokens"] == usage.completion_tokens
    total_us = sum(record["stages_us"].values())
    tolerance_us = max(0.02 * record["wall_us"], 1000)
    assert abs(total_us - record["wall_us"]) <= tolerance_us
    assert record["wall_us"] <= wall_s * 1e6


def test_stages_and_settling_are_the_whole_request(stack) -> None:
    # Between two stages a busy machine may run somebody else: that is nobody's stage.
    assert any(_is_whole_request_told(stack) for _ in range(5))


def _is_whole_request_told(stack) -> bool:
    request_id = ask(stack, "What is TTFT?").headers["x-request-id"]
    wait_until(lambda: stack.usage_records(request_id))
    (record,) = stack.usage_records(request_id)
    # The record is what is settled, so settling itself is not in it; the trace has the rest.
    spans = spans_of(stack, request_id)
    whole, settle = (_duration_us(spans[name]) for name in (ROOT, "settle"))
    total_us = sum(record["stages_us"].values())
    return abs(total_us + settle - whole) <= max(0.02 * whole, 1000)


def _duration_us(span: StoredSpan) -> float:
    return (span.end_ns - span.start_ns) / 1000
