"""Every replica of every service leaves and comes back under load, and no request notices.

The clients reach the gateways through a TCP proxy that follows /readyz, as a load balancer does,
and ask for greedy answers, so that each is known word for word. Arrivals are open loop: a client
that waits for its answer would spare a stack that stalls. In the long run they come at a share of
what the stack was measured to serve; in the short one at a low rate, and no more than one client
alone would ask for, since workers that load their model beside a full load take half a minute.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import pytest

from baton.testing.fault_proxy import FaultProxy
from baton.testing.ready_upstreams import ReadyUpstreams
from tests.chaos.conftest import Target
from tests.e2e.conftest import ROOT, Stack

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
# One replica of each service; all of them, again and again, in the long run.
ONE_OF_EACH = ("router-1", "quota-1", "tokenizer-1", "prefill-1", "decode-1", "gateway-1")
NUM_LONG_STREAMS = 1000
LOAD_SHARE = 0.7
SHORT_RATE = 2.0
# Of the streams that arrive in the time of a roll, so many must also end in it: a roll that met
# hardly any would prove nothing.
MIN_MET_SHARE = 0.5
MAX_TOKENS = 48
QUESTIONS = (
    "What is TTFT?",
    "Why are output tokens dearer than input tokens?",
    "Tell me the life of a request.",
    "Explain backpressure in simple terms.",
)


@dataclass
class Load:
    """Streams through the proxy: how many, how they ended, what was wrong with them. `right` holds
    the answers that one client alone got from a stack that nothing disturbed."""

    client: httpx.AsyncClient
    url: str
    right: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def one(self, question: str) -> None:
        """One stream; its text must be the right one."""
        try:
            text, outcome = await self._stream(question)
        except httpx.HTTPError as error:
            text, outcome = "", repr(error)
        expected = self.right[question]
        if outcome == "done" and text != expected:
            outcome = f"another text: {text[-40:]!r} for {expected[-40:]!r}"
        self.outcomes[outcome if outcome == "done" else "failed"] += 1
        if outcome != "done":
            self.failures.append(f"{time.strftime('%H:%M:%S')} {outcome}")

    async def _stream(self, question: str) -> tuple[str, str]:
        body = {
            "model": "baton-demo", "stream": True, "temperature": 0, "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": question}],
        }  # fmt: skip
        pieces, outcome = [], "no end"
        async with self.client.stream("POST", self.url, json=body) as response:
            if response.status_code != 200:
                return "", f"{response.status_code} {(await response.aread())[:200]!r}"
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    outcome = "done"
                elif data.startswith("{"):
                    event = json.loads(data)
                    if "error" in event:
                        return "", f"error event {event['error']}"
                    pieces += [c["delta"].get("content") or "" for c in event["choices"]]
        return "".join(pieces), outcome

    async def learn(self) -> float:
        """The right answers, one client at a time; how many seconds one takes."""
        started = time.monotonic()
        for question in QUESTIONS:
            text, outcome = await self._stream(question)
            assert text, outcome
            assert outcome == "done"
            self.right[question] = text
        return (time.monotonic() - started) / len(QUESTIONS)

    async def measure(self, num_clients: int, num_streams: int) -> float:
        """Streams a second, closed loop."""
        left = [random.Random(5).choice(QUESTIONS) for _ in range(num_streams)]

        async def client() -> None:
            while left:
                await self.one(left.pop())

        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_clients):
                tasks.create_task(client())
        return num_streams / (time.monotonic() - started)

    async def arrive(self, rate: float, enough: asyncio.Event) -> None:
        """Streams arrive at random times, `rate` a second, until `enough`; all of them end."""
        rng = random.Random(11)
        async with asyncio.TaskGroup() as tasks:
            while not enough.is_set():
                tasks.create_task(self.one(rng.choice(QUESTIONS)))
                await asyncio.sleep(rng.expovariate(rate))


async def roll(stack: Stack, names: tuple[str, ...]) -> str:
    """`baton roll`, as people run it; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *stack.command_line("roll", *names),
        env=stack.environment,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.timeout(900 if not IS_LONG else 7200)
def test_every_service_restarts_under_load_without_one_failed_request(target: Target) -> None:
    target.wait_until_whole()
    load = asyncio.run(_rolled_under_load(target.stack))
    assert not load.failures, "\n".join(load.failures[:20])


async def _rolled_under_load(stack: Stack) -> Load:
    names = () if IS_LONG else ONE_OF_EACH
    before = stack.pids()
    with FaultProxy(ReadyUpstreams(lambda: gateways(stack))) as proxy:
        headers = {"authorization": f"Bearer {stack.api_key}"}
        limits = httpx.Limits(max_connections=512, max_keepalive_connections=0)
        async with httpx.AsyncClient(headers=headers, timeout=60, limits=limits) as client:
            load = Load(client, f"http://{proxy.address}/v1/chat/completions")
            alone_s = await load.learn()
            short_rate = min(SHORT_RATE, 1 / alone_s)
            rate = LOAD_SHARE * await load.measure(8, 200) if IS_LONG else short_rate
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.arrive(rate, enough))
                num_before, began_s = load.outcomes.total(), time.monotonic()
                print(await roll(stack, names))
                while IS_LONG and load.outcomes.total() < NUM_LONG_STREAMS:
                    print(await roll(stack, names))
                num_met = load.outcomes.total() - num_before
                rolled_s = time.monotonic() - began_s
                enough.set()
    after = stack.pids()
    restarted = {name for name in before if after[name] != before[name]}
    assert restarted == (set(before) - {"spans", "redis", "web"} if IS_LONG else set(ONE_OF_EACH))
    print(f"at {rate:.1f} streams a second, {num_met} in the roll: {dict(load.outcomes)}")
    assert num_met >= max(len(restarted), MIN_MET_SHARE * rate * rolled_s)
    return load


def gateways(stack: Stack) -> list[str]:
    state = stack.home.read_state()
    assert state is not None
    return [
        f"http://{endpoint}"
        for name, endpoint in state.endpoints().items()
        if name.startswith("gateway")
    ]
