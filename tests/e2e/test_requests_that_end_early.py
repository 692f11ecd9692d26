"""Clients that leave at any moment, and deadlines, on the real stack: nothing is left behind."""

import asyncio
import json
import os
import random
import time

import httpx
import pytest

from tests.e2e.conftest import Stack, wait_until

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
NUM_ABORTS = 2000 if IS_LONG else 60
STORY = "Tell me the life of a request."
LONG_PROMPT = "Tell me, in a few words, about the price of tea and the way to the station. " * 40
FREE_AFTER_S = 0.25

WORKER_GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "baton_num_requests_parked",
    "baton_kv_blocks_used",
    "baton_kv_blocks_promised",
)
OTHER_GAUGES = {
    "gateway": ("baton_gateway_open_requests", "baton_gateway_outbox_records"),
    "router": ("baton_router_queue_requests",),
}


def gauges(stack: Stack) -> dict[tuple[str, str], float]:
    names = dict.fromkeys(stack.workers(), WORKER_GAUGES) | OTHER_GAUGES
    return {(s, name): stack.metric(s, name) for s, of in names.items() for name in of}


def cancels(stack: Stack, **labels: str) -> tuple[float, float]:
    """How many cancels the workers have measured, and how many took FREE_AFTER_S at most."""
    name = "baton_cancel_seconds"
    counts = (stack.metric(worker, f"{name}_count", **labels) for worker in stack.workers())
    within = (
        stack.metric(worker, f"{name}_bucket", le=str(FREE_AFTER_S), **labels)
        for worker in stack.workers()
    )
    return sum(counts), sum(within)


def request_of(stack: Stack, rng: random.Random) -> bytes:
    body = {
        "model": "baton-demo",
        "stream": rng.random() < 0.7,
        "n": rng.choice([1, 1, 1, 2]),
        "max_tokens": rng.choice([20, 200]),
        "messages": [
            {"role": "user", "content": rng.choice([STORY, LONG_PROMPT]) + str(rng.random())}
        ],
    }
    if rng.random() < 0.2:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"enum": [rng.random(), "abc"]}},
        }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
        f"authorization: Bearer {stack.api_key}\r\ncontent-type: application/json\r\n\r\n"
    )
    return head.encode() + data


async def leave_early(stack: Stack, rng: random.Random, at_once: asyncio.Semaphore) -> None:
    """One client: after the request, after some time, or after the first bytes of the answer."""
    async with at_once:
        url = httpx.URL(stack.base_url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(request_of(stack, rng))
        # The last one sees an answer begin, on any machine.
        patience_s = rng.choice([0.0, rng.uniform(0, 0.2), rng.uniform(0, 1), 60.0])
        try:
            async with asyncio.timeout(patience_s):
                await reader.read(rng.choice([100, 100_000]))
        except TimeoutError:
            pass
        if rng.random() < 0.5:
            writer.transport.abort()  # RST
        else:
            writer.close()


def test_after_mixed_aborts_every_gauge_is_back_to_zero(stack: Stack) -> None:
    async def aborts() -> None:
        rng, at_once = random.Random(3), asyncio.Semaphore(12)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_ABORTS):
                tasks.create_task(leave_early(stack, rng, at_once))

    before, within_before = cancels(stack)
    asyncio.run(aborts())
    wait_until(lambda: not any(gauges(stack).values()))
    count, within = cancels(stack)
    assert count > before, "no cancel reached a worker"
    if IS_LONG:
        share = (within - within_before) / (count - before)
        print(f"{count - before:.0f} cancels at workers, {share:.1%} free within {FREE_AFTER_S} s")
        assert share >= 0.95
    assert stack.client().models.list().data, "the stack still serves"


def post(stack: Stack, headers: dict[str, str], **fields: object) -> httpx.Response:
    message = {"role": "user", "content": STORY}
    body = {"model": "baton-demo", "temperature": 0, "messages": [message], **fields}
    headers = {"authorization": f"Bearer {stack.api_key}", **headers}
    return httpx.post(f"{stack.base_url}/chat/completions", json=body, headers=headers, timeout=120)


def test_no_first_token_in_time_is_a_504_and_frees_everything(stack: Stack) -> None:
    answer = post(stack, {"x-first-token-timeout-s": "0.001"})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: not any(stack.used_blocks().values()))


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_that_takes_too_long_is_ended_at_its_deadline(
    stack: Stack, streams: bool
) -> None:
    # Long enough for its first token beside what the router still counts of the clients that left:
    # it refuses what would come too late.
    limit_s, started = 1.5, time.monotonic()
    answer = post(
        stack, {"x-request-timeout-s": str(limit_s)}, stream=streams, max_tokens=1900,
        ignore_eos=True,
    )  # fmt: skip
    assert time.monotonic() - started >= limit_s, answer.text
    if streams and answer.status_code == 200:
        last = answer.text.strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == "deadline_exceeded"
        assert answer.text.count('"error"') == 1
    else:
        assert answer.status_code == 504
    wait_until(lambda: not any(stack.used_blocks().values()))
    request_id = answer.headers["x-request-id"]
    wait_until(lambda: stack.usage_records(request_id))
    [record] = stack.usage_records(request_id)
    assert record["finish_reason"] == "deadline_exceeded"
