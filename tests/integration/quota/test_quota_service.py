"""The quota service over real gRPC and a real Redis: limits under contention, outages, restarts."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import environment
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.runtime.grpc_channel import open_channel
from baton.runtime.process import Process
from baton.runtime.redis_connections import connect
from baton.system.clock import SystemClock
from baton.testing.redis_server import RedisServer
from baton.wire import failures, key_registry, usage_log
from baton.wire.call_methods import AUTHENTICATE, RESERVE, SETTLE
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Revocation
from baton.wire.v1 import quota_pb2, quota_pb2_grpc
from services.quota import keys
from services.quota.__main__ import serve
from services.quota.settings import PREFIX, Settings

SECRET = b"s" * 32
HELD = quota_pb2.LeaseState.STATE_HELD
# A busy machine must not decide: neither for a call nor, where that is not the subject, for Redis.
DEADLINE_S = 60.0
TERMS = CallTerms(DEADLINE_S)


@pytest.fixture
def folder():
    # Short: a Unix socket's path is limited to about 100 characters.
    with TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


@pytest.fixture
def redis(folder):
    with RedisServer(folder) as running:
        yield running


def free_address() -> str:
    return f"{LOOPBACK}:{free_ports(1)[0]}"


def settings_for(folder: Path, redis_url: str, **options) -> Settings:
    return Settings(
        listen=free_address(),
        redis_url=redis_url,
        registry_file=folder / "registry.jsonl",
        usage_dir=folder / "usage",
        archive_interval_s=0.05,
        registry_interval_s=0.05,
        **{"redis_timeout_s": DEADLINE_S, **options},
    )


def new_key(folder: Path, tenant: str = "acme", **limits):
    key, record = key_registry.new_key(SECRET, tenant, KeyLimits(**limits), now_unix_s=0)
    key_registry.append(folder / "registry.jsonl", record)
    return key, record


class Quota:
    """A connection to the service, as a gateway has it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = quota_pb2_grpc.QuotaStub(channel)
        calls = SharedCalls.over_grpc(self.stub, SystemClock(), is_balanced=False)
        self.authenticate = partial(calls.call, AUTHENTICATE)
        self.reserve = partial(calls.call, RESERVE)
        self.settle = partial(calls.call, SETTLE)


@asynccontextmanager
async def running_service(settings: Settings):
    """The service's own main in this process; yields a connection to it."""
    process = Process("quota", SystemClock(), asyncio.Event())
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(process, settings))
        try:
            async with open_channel(settings.listen) as channel:
                await asyncio.wait_for(channel.channel_ready(), DEADLINE_S)
                yield Quota(channel)
        finally:
            process.stopping.set()
            await serving


def reservation(record, request_id: str, prompt: int = 10, output: int = 90):
    return quota_pb2.ReserveRequest(
        request_id=request_id,
        tenant=record.tenant,
        key_id=record.key_id,
        model="m",
        num_prompt_tokens=prompt,
        num_output_tokens=output,
    )


def settlement(record, request_id: str, prompt: int = 10, output: int = 20):
    usage = quota_pb2.UsageRecord(
        request_id=request_id,
        tenant=record.tenant,
        key_id=record.key_id,
        model="m",
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        finish_reason="stop",
    )
    return quota_pb2.SettleRequest(usage=usage)


async def test_key_of_a_file_works_also_after_redis_came_back_empty(folder, redis):
    (folder / "api-key").write_text("bt-" + "k" * 43)
    (folder / "server-secret").write_text(SECRET.hex())
    settings = Settings(
        listen=free_address(),
        redis_url=redis.url,
        redis_timeout_s=DEADLINE_S,
        bootstrap_key_file=folder / "api-key",
        secret_file=folder / "server-secret",
    )
    digest = key_registry.key_digest(SECRET, "bt-" + "k" * 43)
    request = quota_pb2.AuthenticateRequest(key_digest=digest)
    async with running_service(settings) as quota:
        first = await quota.authenticate(request, TERMS)
        redis.kill()
        redis.start()
        assert await quota.authenticate(request, TERMS) == first
    assert first.tenant == "bootstrap"


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = DEADLINE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_one_request_from_key_to_archived_usage(folder, redis):
    key, record = new_key(folder, requests_per_minute=60, tokens_per_minute=6000)
    async with running_service(settings_for(folder, redis.url)) as quota:
        digest = key_registry.key_digest(SECRET, key)
        principal = await quota.authenticate(
            quota_pb2.AuthenticateRequest(key_digest=digest), TERMS
        )
        assert (principal.tenant, principal.key_id) == ("acme", record.key_id)
        granted = await quota.reserve(reservation(record, "r1"), TERMS)
        assert granted.granted_output_tokens == 90
        assert granted.limits.remaining_tokens == 5900

        renewals = quota.stub.Renew()
        renewal = quota_pb2.LeaseRenewal(
            request_id="r1", tenant="acme", used_output_tokens=60, wanted_output_tokens=200
        )
        await renewals.write(quota_pb2.RenewRequest(leases=[renewal]))
        [state] = (await renewals.read()).leases
        assert (state.state, state.granted_output_tokens) == (HELD, 200)
        await renewals.done_writing()
        assert await renewals.code() is grpc.StatusCode.OK

        settled = await quota.settle(settlement(record, "r1", output=120), TERMS)
        assert not settled.repeated_settle
        again = await quota.settle(settlement(record, "r1", output=120), TERMS)
        assert again.repeated_settle
    # The service has drained: what it acknowledged is on the disk.
    [line] = [x for f in usage_log.files(folder / "usage") for x in usage_log.read_file(f)]
    assert (line.request_id, line.num_tokens) == ("r1", 130)


async def test_refusal_travels_with_reason_wait_and_limit_state(folder, redis):
    _, record = new_key(folder, requests_per_minute=1, tokens_per_minute=1000)
    async with running_service(settings_for(folder, redis.url)) as quota:
        began_s = time.monotonic()
        await quota.reserve(reservation(record, "r1"), TERMS)
        with pytest.raises(failures.LimitExceeded) as refused:
            await quota.reserve(reservation(record, "r2"), TERMS)
        spent_s = time.monotonic() - began_s
        assert refused.value.reason == "rate_limit_exceeded"
        assert 59 - spent_s < refused.value.retry_after_s <= 60
        assert refused.value.limits.limit_requests == 1
        assert refused.value.limits.remaining_requests == 0
        with pytest.raises(failures.InvalidRequest) as too_large:
            await quota.reserve(reservation(record, "r3", output=991), TERMS)
        assert too_large.value.reason == "request_exceeds_limit"


async def test_last_budget_admits_exactly_what_fits_under_contention(folder, redis):
    _, record = new_key(folder, budget_tokens=1050, budget_period="month")
    first = settings_for(folder, redis.url)
    second = settings_for(folder, redis.url)
    async with running_service(first) as one, running_service(second) as other:
        replicas = (one, other)

        async def reserve(number: int) -> str:
            request = reservation(record, f"r{number}")
            try:
                await replicas[number % 2].reserve(request, TERMS)
            except failures.LimitExceeded as error:
                return error.reason
            return "granted"

        outcomes = await asyncio.gather(*(reserve(number) for number in range(200)))
    assert outcomes.count("granted") == 10
    assert outcomes.count("insufficient_quota") == 190


async def test_revoked_key_stops_working_within_the_registry_interval(folder, redis):
    key, record = new_key(folder)
    digest = key_registry.key_digest(SECRET, key)
    request = quota_pb2.AuthenticateRequest(key_digest=digest)
    async with running_service(settings_for(folder, redis.url)) as quota:
        await quota.authenticate(request, TERMS)
        key_registry.append(folder / "registry.jsonl", Revocation(record.key_id, 0))

        async def refused() -> bool:
            try:
                await quota.authenticate(request, TERMS)
            except failures.AuthenticationFailed:
                return True
            return False

        await until(refused)


async def test_calls_fail_as_unavailable_while_redis_is_gone_and_work_when_it_is_back_empty(
    folder, redis
):
    key, record = new_key(folder, tokens_per_minute=6000)
    digest = key_registry.key_digest(SECRET, key)
    request = quota_pb2.AuthenticateRequest(key_digest=digest)
    async with running_service(settings_for(folder, redis.url)) as quota:
        await quota.reserve(reservation(record, "r1"), TERMS)
        redis.kill()
        by_files = await quota.authenticate(request, TERMS)
        assert (by_files.key_id, by_files.is_from_files) == (record.key_id, True)
        for method, message in (
            (quota.authenticate, quota_pb2.AuthenticateRequest(key_digest=bytes(32))),
            (quota.reserve, reservation(record, "r2")),
            (quota.settle, settlement(record, "r1")),
        ):
            with pytest.raises(failures.Unavailable) as gone:
                await method(message, TERMS)
            assert gone.value.reason == "quota_unavailable"
        redis.start()
        # No waiting: the first call after its return reconnects and reloads scripts and registry.
        principal = await quota.authenticate(request, TERMS)
        assert (principal.key_id, principal.is_from_files) == (record.key_id, False)
        await quota.reserve(reservation(record, "r2"), TERMS)
        settled = await quota.settle(settlement(record, "r1"), TERMS)
        assert not settled.repeated_settle


async def test_stopped_redis_costs_a_call_no_more_than_its_timeout(folder, redis):
    """Which is so short here that a busy machine is no faster now and then: then asked again."""
    _, record = new_key(folder)
    async with running_service(settings_for(folder, redis.url, redis_timeout_s=0.1)) as quota:

        async def granted(request_id: str) -> bool:
            with suppress(failures.Unavailable):
                await quota.reserve(reservation(record, request_id), TERMS)
                return True
            return False

        await until(lambda: granted("r1"))
        redis.pause()
        assert not await granted("r2")
        redis.resume()
        await until(lambda: granted("r2"))


async def test_expired_leases_are_reaped_without_anybody_asking(folder, redis):
    _, record = new_key(folder, concurrency=1)
    settings = settings_for(folder, redis.url, lease_s=0.2, reap_interval_s=0.05)
    async with running_service(settings) as quota:
        await quota.reserve(reservation(record, "r1"), TERMS)

        async def archived() -> bool:
            return bool(usage_log.files(folder / "usage"))

        await until(archived)
    [line] = [x for f in usage_log.files(folder / "usage") for x in usage_log.read_file(f)]
    assert (line.request_id, line.provisional, line.num_output_tokens) == ("r1", True, 0)


async def test_redis_and_archive_hold_no_key_and_no_secret(folder):
    with RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always") as redis:
        key, record = new_key(folder)
        async with running_service(settings_for(folder, redis.url)) as quota:
            await quota.reserve(reservation(record, "r1"), TERMS)
            await quota.settle(settlement(record, "r1"), TERMS)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in files:
        data = path.read_bytes()
        assert key.encode() not in data
        assert SECRET not in data


def test_process_serves_drains_on_sigterm_and_refuses_unknown_settings(folder, redis):
    environment = {
        **os.environ,
        PREFIX + "REDIS_URL": redis.url,
        PREFIX + "USAGE_DIR": str(folder / "usage"),
    }
    command = [sys.executable, "-m", "services.quota"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if '"serving"' in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
    wrong = subprocess.run(
        command, env={**environment, PREFIX + "REDIS_ULR": "x"}, capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "BATON_QUOTA_REDIS_ULR" in wrong.stderr


async def flush(redis) -> None:
    """Redis comes back empty."""
    client = connect(redis.url, DEADLINE_S, 1)
    await client.flushall()
    await client.aclose()


async def test_key_made_beside_the_service_works_until_it_is_revoked(
    folder, redis, monkeypatch, capsys
):
    (folder / "api-key").write_text("bt-" + "k" * 43)
    (folder / "server-secret").write_text(SECRET.hex())
    settings = Settings(
        listen=free_address(),
        redis_url=redis.url,
        redis_timeout_s=DEADLINE_S,
        bootstrap_key_file=folder / "api-key",
        secret_file=folder / "server-secret",
        registry_file=folder / "registry.jsonl",
    )
    for name, value in environment.to_environment(settings, PREFIX).items():
        monkeypatch.setenv(name, value)
    async with running_service(settings) as quota:
        budget = ["--budget", "5000", "--hard-budget"]
        limits = ["--rpm", "7", "--priority", "9", *budget]
        assert await asyncio.to_thread(keys.main, ["create", "--tenant", "acme", *limits]) == 0
        api_key = capsys.readouterr().out.strip()
        request = quota_pb2.AuthenticateRequest(key_digest=key_registry.key_digest(SECRET, api_key))
        principal = await quota.authenticate(request, TERMS)
        assert (principal.tenant, principal.limits.requests_per_minute) == ("acme", 7)
        await flush(redis)
        assert await quota.authenticate(request, TERMS) == principal
        assert principal.priority == 9
        assert (principal.limits.budget_tokens, principal.limits.hard_budget) == (5000, True)
        assert await asyncio.to_thread(keys.main, ["list"]) == 0
        listed = capsys.readouterr().out
        assert principal.key_id in listed
        assert api_key not in listed
        assert await asyncio.to_thread(keys.main, ["revoke", principal.key_id]) == 0
        with pytest.raises(failures.AuthenticationFailed):
            await quota.authenticate(request, TERMS)
        await flush(redis)
        with pytest.raises(failures.AuthenticationFailed):
            await quota.authenticate(request, TERMS)
        assert await asyncio.to_thread(keys.main, ["revoke", principal.key_id]) == 0
        assert await asyncio.to_thread(keys.main, ["revoke", "key_unknown"]) == 1
        assert "key_unknown" in capsys.readouterr().err
