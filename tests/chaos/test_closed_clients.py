"""Clients that leave in each phase of their request: everything they held comes back.

In which phase they left is not assumed but read: gateway and workers count what each leaving client
ended, and the gateway tells what is being flushed. A trial sends clients until one of them has left
in the phase that it is about.
"""

import json
import random
import socket
import time
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from tests.chaos.conftest import Target
from tests.chaos.proxied_way import FIRST_GATEWAY
from tests.chaos.streams import MODEL, story
from tests.chaos.trials import Trials

LONG = "Tell me, in a few words, about the price of tea and the way to the station. "
MAX_ROUNDS = 50
QUIET_TIMEOUT_S = 60.0
# Who looks all the time takes the CPUs from what he looks at.
LOOK_EVERY_S = 0.02
MAX_FREE_P95_S = 0.25
# The limit of one trial: of one in twenty, and on a busy machine.
MAX_FREE_S = 10 * MAX_FREE_P95_S


@dataclass(frozen=True)
class Phase:
    """Where it is counted, and clients that are likely to leave in it: how many at once, how many
    times LONG their prompt is, and after how many seconds at most, or at the first byte."""

    counter: str
    label: str
    num_clients: int
    length: int
    patience_s: float
    num_tokens: int = 50
    waits: bool = False

    def num_counted(self, target: Target) -> float:
        services = [FIRST_GATEWAY] if self.counter == GATEWAY else target.stack.workers()
        name = f"{self.counter}_count"
        return sum(target.stack.metric(each, name, phase=self.label) for each in services)


GATEWAY, WORKER = "baton_gateway_cancel_seconds", "baton_cancel_seconds"
PHASES = {
    "tokenizing": Phase(GATEWAY, "tokenize", 4, 400, 0.05),
    # So many that some wait in line: a few are placed at once.
    "queued": Phase(GATEWAY, "pick", 40, 1, 0.5, num_tokens=1000),
    "routed": Phase(WORKER, "queue", 6, 10, 0.1),
    "prefilling": Phase(WORKER, "prefill", 3, 10, 0.1),
    "in handoff": Phase(WORKER, "handoff", 4, 20, 0.02, waits=True),
    "decoding": Phase(WORKER, "decode", 2, 1, 0.5, num_tokens=1000, waits=True),
    # One long body, of which the client reads the status line.
    "flushing": Phase(GATEWAY, "flush", 1, 60, 1.0, num_tokens=1, waits=True),
}


def ask(target: Target, phase: Phase) -> socket.socket:
    """A client that has asked and has a small buffer for the answer."""
    question = f"{target.rng.random()} {LONG * phase.length}"
    tokens = {"max_tokens": phase.num_tokens, "min_tokens": phase.num_tokens}
    if phase.label == "flush":
        kind, body = "completions", {"prompt": question, "echo": True, "logprobs": 5}
        body |= {"model": MODEL, **tokens}
    else:
        kind, body = "chat/completions", story(question=question, **tokens)
    data, url = json.dumps(body).encode(), urlsplit(target.stack.base_url)
    head = (
        f"POST {url.path}/{kind} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
        f"authorization: Bearer {target.stack.api_key}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(QUIET_TIMEOUT_S)
    client.connect((url.hostname, url.port))
    client.sendall(head.encode() + data)
    return client


def leave(client: socket.socket, rng: random.Random) -> None:
    """With FIN or with RST."""
    if rng.random() < 0.5:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def stages(target: Target) -> list[str]:
    """What the gateway's open requests are at."""
    state = target.stack.home.read_state()
    assert state is not None
    page = str(state.services[FIRST_GATEWAY]["metrics_url"]).removesuffix("metrics") + "requests"
    with urllib.request.urlopen(page) as answer:
        return [row["stage"] for row in json.load(answer)]


def seconds_until_free(target: Target) -> float:
    """From now until no worker holds a block, for as long as a request is open: one that is on its
    way to a worker may still get some."""
    left_s = time.monotonic()
    free_s: float | None = None
    while free_s is None or target.stack.metric(FIRST_GATEWAY, "baton_gateway_open_requests"):
        spent_s = time.monotonic() - left_s
        assert spent_s < QUIET_TIMEOUT_S, "something is held"
        if any(target.stack.used_blocks().values()):
            free_s = None
        elif free_s is None:
            free_s = spent_s
        time.sleep(LOOK_EVERY_S)
    return free_s


@pytest.mark.parametrize("name", PHASES)
def test_a_client_that_leaves_gives_everything_back(
    name: str, target: Target, trials: Trials
) -> None:
    phase, rng = PHASES[name], target.rng

    def trial(_: int) -> float:
        before = phase.num_counted(target)
        for number in range(MAX_ROUNDS):
            clients = [ask(target, phase) for _ in range(phase.num_clients)]
            if phase.waits:
                assert clients[0].recv(12) == b"HTTP/1.1 200"
            # A busy machine comes to the phase later: every other round leaves later and later.
            longer = 2 ** (5 * number / MAX_ROUNDS) if number % 2 else 1
            time.sleep(rng.uniform(0, phase.patience_s * longer))
            # A client that leaves there has got nearly everything, and may be counted as served.
            is_seen = phase.label == "flush" and "flush" in stages(target)
            for client in clients:
                leave(client, rng)
            pause_s = seconds_until_free(target)
            target.wait_until_quiet()
            if is_seen or phase.num_counted(target) > before:
                return pause_s
        raise AssertionError(f"nobody left {name}")

    trials.run(f"client leaves {name}", 200, trial, max_s=MAX_FREE_S, max_p95_s=MAX_FREE_P95_S)
