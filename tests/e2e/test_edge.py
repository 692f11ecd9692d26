"""The real stack behind a real Envoy: what a client, a trace and an operator see of it."""

import itertools
import os
import signal
from collections.abc import Iterator

import openai
import psutil
import pytest

from baton.page.span_store import SpanStore
from tests.e2e.conftest import Stack, wait_until

HOPS = {
    ("envoy", "POST /v1/chat/completions"),
    ("gateway", "chat baton-demo"),
    ("quota", "quota.reserve"),
    ("tokenizer", "tokenizer.encode"),
    ("router", "router.pick"),
    ("prefill_worker", "prefill.compute"),
    ("decode_worker", "decode"),
    ("quota", "quota.settle"),
}


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("edge") / "home"
    arguments = ("--dtype", "float32", "--edge", "--decode", "1", "--replicas", "gateway=2")
    running = Stack(folder, *arguments).start()
    yield running
    assert running.interrupt() == 0, running.output.read_text()[-3000:]


def ask(stack: Stack, max_tokens: int = 8) -> str:
    """One streamed answer; returns its request id."""
    with stack.client().chat.completions.with_streaming_response.create(
        model="baton-demo",
        messages=[{"role": "user", "content": "What is TTFT?"}],
        max_tokens=max_tokens,
        stream=True,
    ) as answer:
        assert "data: [DONE]" in answer.read().decode()
        return str(answer.headers["x-request-id"])


def test_every_hop_lies_under_the_span_of_the_edge(edge: Stack) -> None:
    request_id = ask(edge)
    with SpanStore(edge.home.spans) as store:

        def is_complete() -> bool:
            """Each hop has told, and so has each span's parent: even Envoy's own two, of which one
            may come in a later batch."""
            spans = store.of_request(request_id)
            ids = {span.span_id for span in spans}
            return {(span.service, span.name) for span in spans} >= HOPS and all(
                not span.parent_id or span.parent_id in ids for span in spans
            )

        wait_until(is_complete)
        spans = store.of_request(request_id)
    (root,) = (span for span in spans if not span.parent_id)
    assert (root.service, root.name, root.request_id) == (
        "envoy",
        "POST /v1/chat/completions",
        request_id,
    )
    assert len({span.trace_id for span in spans}) == 1
    by_id = {span.span_id: span for span in spans}
    (gateway,) = (span for span in spans if span.name == "chat baton-demo")
    call = by_id[gateway.parent_id]
    assert (call.service, call.parent_id) == ("envoy", root.span_id)
    shown = edge.command("trace", request_id).stdout
    assert all(name in shown for _, name in HOPS)


def test_nothing_but_our_own_words_is_shown(edge: Stack) -> None:
    """gRPC tells of every fork, unless it was told before its import not to look."""
    assert "fork" not in edge.output.read_text()


def test_a_client_that_leaves_is_cancelled_in_the_engine(edge: Stack) -> None:
    def num_cancelled() -> float:
        return edge.metric("decode-1", "baton_cancel_seconds_count", phase="decode")

    before = num_cancelled()
    with edge.client().chat.completions.create(
        model="baton-demo",
        messages=[{"role": "user", "content": "Tell me a long story."}],
        # Seconds of text: it has not ended when its reader has left.
        max_tokens=1900,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        # The first token is the prefill worker's: who leaves then may end the handoff instead.
        assert len(list(itertools.islice(stream, 5))) == 5
    wait_until(lambda: num_cancelled() > before)
    wait_until(lambda: not any(edge.used_blocks().values()))


def test_the_control_plane_and_a_gateway_may_be_killed(edge: Stack) -> None:
    pids = edge.pids()
    os.kill(pids["edge"], signal.SIGKILL)
    os.kill(pids["gateway-1"], signal.SIGKILL)
    # A request that has reached the dying process is not sent twice.
    wait_until(lambda: not psutil.pid_exists(pids["gateway-1"]))
    for _ in range(5):
        ask(edge, max_tokens=2)
    wait_until(lambda: edge.command("status").returncode == 0, 60, every_s=1)
    ask(edge)


def test_envoy_comes_back_by_itself(edge: Stack) -> None:
    old = edge.pids()["envoy"]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: edge.pids().get("envoy") not in (None, 0, old), 60)
    wait_until(lambda: edge.command("status").returncode == 0, 60, every_s=1)
    ask(edge)


def test_who_tries_keys_is_held_back_whatever_address_it_claims(edge: Stack) -> None:
    """The last test: the address that really tries them is everybody's here."""
    with pytest.raises(openai.RateLimitError):
        for number in range(200):
            guesser = edge.client(api_key=f"sk-wrong-{number}")
            with pytest.raises(openai.AuthenticationError):
                guesser.models.list(extra_headers={"x-forwarded-for": f"10.0.0.{number}"})
