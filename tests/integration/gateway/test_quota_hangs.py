"""A quota service or a Redis that hangs (SIGSTOP), as real processes, under a real gateway.

The time that quota costs a request is read from the gateway's own stage metrics.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from prometheus_client import REGISTRY

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import environment
from baton.runtime.grpc_channel import open_channel
from baton.testing.redis_server import RedisServer
from services.gateway.clients.grpc import HUNG_S
from services.quota.settings import PREFIX, Settings
from tests.integration.gateway.gateway_stack import Stack, running_stack
from tests.unit.gateway.fakes import KEY, SECRET

# By stage, the time that it takes once the outage is known. The bill of a request goes to the
# gateway's disk then, which is as fast as it is.
LIMITS_S = {"auth": 0.01, "reserve": 0.01, "settle": 0.1}
# A request that asked quota would take longer in one of these stages. On a busy machine more than
# one in a hundred takes longer than the limits above without asking; more than half do not.
ASKED_S = {"auth": 0.1, "reserve": 0.1}
NUM_REQUESTS = 200
PERIOD_S = 0.02
# Until it is known: 0.2 s of silence, and what a busy machine adds.
LEARNING_S = 5.0
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.fixture(scope="module", autouse=True)
def patient_gateway() -> None:
    """Take quota for away as soon as in production."""


@contextmanager
def quota_process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    own = environment.to_environment(settings, PREFIX)
    process = subprocess.Popen(
        [sys.executable, "-m", "services.quota"],
        env={**os.environ, **own},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Hung:
    """The services around one gateway; `stop` and `go_on` hold the one that is to hang."""

    def __init__(self, stack: Stack, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
        self.stack, self.stop, self.go_on = stack, stop, go_on
        self.http = httpx.AsyncClient(
            base_url=stack.root, headers={"Authorization": f"Bearer {KEY}"}, timeout=60
        )

    async def chat(self) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=CHAT)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0.01)


def is_away() -> bool:
    return REGISTRY.get_sample_value("baton_gateway_quota_away") == 1


def num_within(stage: str, seconds: float | None = None) -> float:
    """The requests whose stage took at most so long; all without `seconds`."""
    labels = {"model_name": "demo", "stage": stage}
    if seconds is None:
        return REGISTRY.get_sample_value("baton_gateway_stage_seconds_count", labels) or 0.0
    labels["le"] = str(seconds)
    return REGISTRY.get_sample_value("baton_gateway_stage_seconds_bucket", labels) or 0.0


def num_over(limits_s: Mapping[str, float]) -> dict[str, float]:
    """The requests, by stage, for which it took longer."""
    return {
        stage: num_within(stage) - num_within(stage, limit_s) for stage, limit_s in limits_s.items()
    }


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {stage: num - before[stage] for stage, num in after.items()}


def settings_in(folder: Path, port: int) -> Settings:
    (folder / "api-key").write_text(KEY)
    (folder / "secret").write_text(SECRET.hex())
    return Settings(
        listen=f"{LOOPBACK}:{port}",
        redis_url=RedisServer(folder).url,
        bootstrap_key_file=folder / "api-key",
        secret_file=folder / "secret",
        fresh_for_s=0.5,
    )


async def until_it_serves(hung: Hung) -> None:
    async with asyncio.timeout(60):
        while (await hung.chat()).status_code != 200:
            await asyncio.sleep(0.05)


def quicken(stack: Stack) -> None:
    stack.worker.texts = ["Hello there."]
    stack.worker.prefill_s = stack.worker.step_s = 0.001


@pytest.fixture(params=["quota", "redis"])
async def hung(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hung]:
    with TemporaryDirectory(prefix="baton-") as short:
        folder = Path(short)
        settings = settings_in(folder, free_ports(1)[0])
        with RedisServer(folder) as redis, quota_process(settings) as quota:
            async with running_stack(tmp_path, quota=(settings.listen,)) as stack:
                quicken(stack)
                if request.param == "redis":
                    hung = Hung(stack, redis.pause, redis.resume)
                else:
                    hung = Hung(
                        stack,
                        lambda: quota.send_signal(signal.SIGSTOP),
                        lambda: quota.send_signal(signal.SIGCONT),
                    )
                try:
                    await until_it_serves(hung)
                    yield hung
                finally:
                    hung.go_on()
                    await hung.http.aclose()


async def test_a_hung_quota_or_redis_costs_requests_nothing_once_it_is_known(hung: Hung) -> None:
    while_learning = num_over(dict.fromkeys(LIMITS_S, LEARNING_S))
    hung.stop()
    tasks = []
    async with asyncio.timeout(60):
        while not is_away():
            tasks.append(asyncio.create_task(hung.chat()))
            await asyncio.sleep(PERIOD_S)
    learned = await asyncio.gather(*tasks)
    assert {answer.status_code for answer in learned} == {200}
    too_long = difference(num_over(dict.fromkeys(LIMITS_S, LEARNING_S)), while_learning)
    assert not any(too_long.values()), too_long
    before, none_asked = num_over(LIMITS_S), num_over(ASKED_S)
    answers = [await hung.chat() for _ in range(NUM_REQUESTS)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-ratelimit-degraded"] for answer in answers} == {"1"}
    readiness = await hung.http.get("/readyz")
    assert (readiness.status_code, readiness.json()["status"]) == (200, "degraded")
    asked = difference(num_over(ASKED_S), none_asked)
    assert max(asked.values()) <= NUM_REQUESTS / 20, asked
    slow = difference(num_over(LIMITS_S), before)
    assert max(slow.values()) <= NUM_REQUESTS / 2, slow
    hung.go_on()
    await hung.until(lambda: not is_away())
    async with asyncio.timeout(60):
        while "x-ratelimit-degraded" in (await hung.chat()).headers:
            await asyncio.sleep(0.05)
    await hung.until(lambda: REGISTRY.get_sample_value("baton_gateway_outbox_records") == 0)


def num_reconnects() -> float:
    return REGISTRY.get_sample_value("baton_gateway_quota_reconnects_total") or 0.0


async def test_one_hung_replica_of_two_costs_requests_nothing_once_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.clients.grpc.MIN_LIFE_S", 0.0)
    # The other replica answers as soon as a busy machine lets it.
    monkeypatch.setattr("services.gateway.tenants.quota_outage.SILENCE_S", 10.0)
    monkeypatch.setattr("services.gateway.request.reservation.RESERVE_TIMEOUT_S", 10.0)
    with TemporaryDirectory(prefix="baton-") as short:
        folder = Path(short)
        one, other = (settings_in(folder, port) for port in free_ports(2))
        with RedisServer(folder), quota_process(one) as hanging, quota_process(other):
            for replica in (one, other):
                async with open_channel(replica.listen) as channel:
                    await asyncio.wait_for(channel.channel_ready(), 60)
            async with running_stack(tmp_path, quota=(one.listen, other.listen)) as stack:
                quicken(stack)
                hung = Hung(
                    stack,
                    lambda: hanging.send_signal(signal.SIGSTOP),
                    lambda: hanging.send_signal(signal.SIGCONT),
                )
                try:
                    await until_it_serves(hung)
                    # Time to be connected with both.
                    assert {(await hung.chat()).status_code for _ in range(20)} == {200}
                    await hung_replica_costs_nothing(hung)
                finally:
                    hung.go_on()
                    await hung.http.aclose()


async def hung_replica_costs_nothing(hung: Hung) -> None:
    first, while_learning = num_reconnects(), num_over(dict.fromkeys(LIMITS_S, LEARNING_S))
    hung.stop()
    async with asyncio.timeout(60):
        while num_reconnects() == first:
            assert (await hung.chat()).status_code == 200
    too_long = difference(num_over(dict.fromkeys(LIMITS_S, LEARNING_S)), while_learning)
    assert not any(too_long.values()), too_long
    limits_s = dict.fromkeys(LIMITS_S, HUNG_S)
    before, known = num_over(limits_s), num_reconnects()
    answers = [await hung.chat() for _ in range(NUM_REQUESTS)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any("x-ratelimit-degraded" in answer.headers for answer in answers)
    # What waits for the hung replica takes longer. Were it still asked, every other request would.
    slow = difference(num_over(limits_s), before)
    assert max(slow.values()) <= NUM_REQUESTS / 10, (slow, num_reconnects() - known)
