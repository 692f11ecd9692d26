"""Clients that are killed in each phase of their request give back every block. Each test proves
that the phase was really there when the client died."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, wait_until

# Posts one streaming chat request and reads it slowly, one line at a time.
CLIENT = """
import http.client, json, sys, time
host, key, question, fields = sys.argv[1:]
connection = http.client.HTTPConnection(host, timeout=60)
body = {"model": "baton-demo", "stream": True, "temperature": 0,
        "messages": [{"role": "user", "content": question}], **json.loads(fields)}
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
answer = connection.getresponse()
while line := answer.readline():
    print("line", flush=True)
"""
STORY = "Tell me the life of a request."
# Of the story that is read: it has not ended when its reader is killed.
NUM_TOKENS = 900
# About 1,300 prompt tokens: a prefill of several steps.
LONG = "Tell me, in a few words, about the price of tea and the way to the station. " * 60


# Clients are sent again until one was in the phase that a test is about.
MAX_ROUNDS = 10


class Client:
    """One client process. `fields` are more of the request's."""

    def __init__(self, stack: Stack, question: str, **fields: object) -> None:
        host = stack.base_url.removeprefix("http://").removesuffix("/v1")
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, host, stack.api_key, question, json.dumps(fields)],
            stdout=subprocess.PIPE,
        )

    def wait_for_tokens(self, count: int) -> None:
        assert self.process.stdout is not None
        for _ in range(count):
            assert self.process.stdout.readline() == b"line\n"

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def num_queued(stack: Stack) -> float:
    return stack.metric("router", "baton_router_queue_requests")


def is_idle(stack: Stack) -> bool:
    return not any(stack.used_blocks().values())


def seen(condition: Callable[[], bool], clients: Sequence[Client]) -> bool:
    """Whether it holds before all clients have ended."""
    wait_until(lambda: condition() or all(client.is_over for client in clients))
    return condition()


def test_killed_in_mid_stream(small: Stack) -> None:
    client = Client(small, STORY, max_tokens=NUM_TOKENS, ignore_eos=True)
    client.wait_for_tokens(6)
    assert small.used_blocks()["decode-1"] > 0
    assert not client.is_over, "the client had ended before it was killed"
    client.kill()
    wait_until(lambda: is_idle(small))


def test_killed_in_prefill(small: Stack) -> None:
    def num_left_there() -> float:
        name = "baton_cancel_seconds_count"
        return sum(small.metric(worker, name, phase="prefill") for worker in small.workers())

    # A prefill is short: one may be over before its client is dead, but not those behind it.
    for number in range(MAX_ROUNDS):
        before = num_left_there()
        clients = [Client(small, f"{number} {other} {LONG}") for other in range(3)]
        seen(lambda: small.used_blocks()["prefill-1"] > 0, clients)
        for client in clients:
            client.kill()
        wait_until(lambda: is_idle(small))
        if num_left_there() > before:
            return
    pytest.fail("no client was killed before its prefill had ended")


def test_killed_in_the_queue(small: Stack) -> None:
    # Each holds most of the pool's promises while it reads its long prompt.
    for number in range(MAX_ROUNDS):
        clients = [Client(small, f"{number} {other} {LONG}") for other in range(6)]
        was_there = seen(lambda: num_queued(small) > 0, clients)
        for client in clients:
            client.kill()
        wait_until(lambda: num_queued(small) == 0 and is_idle(small))
        if was_there:
            break
    else:
        pytest.fail("no client waited when it was killed")
    assert small.client().models.list().data[0].id == "baton-demo"


def test_all_processes_are_still_the_first_ones(small: Stack) -> None:
    """Nothing died on the way: the gauges are those of processes that lived through it all."""
    assert "ended with" not in small.output.read_text()
    assert Path(f"/proc/{small.pids()['decode-1']}").exists()
