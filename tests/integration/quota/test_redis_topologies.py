"""The ledger, archiver and key command on a real cluster, and behind real Sentinels."""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ConnectionError as RedisConnectionError

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime.redis_connections import PasswordFile, connect
from baton.testing.certificates import Authority
from baton.testing.redis_server import server_binary
from baton.wire import failures, key_registry, usage_log
from baton.wire.key_limits import WHOLE, KeyLimits, organisation_root
from baton.wire.v1 import quota_pb2
from services.quota import keys
from services.quota.archive import Archiver
from services.quota.file_keys import read_in_thread
from services.quota.ledger import Ledger, store_time_ms
from services.quota.registry import Registry
from services.quota.restore import ArchivedBudgets
from services.quota.store import RedisStore
from tests import needs

# A busy machine must not decide.
TIMEOUT_S = 20.0
ORGANISATION = "bigco"
TENANTS = [*(f"tenant-{number}" for number in range(12)), "bigco/ads", "bigco/search"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


@contextmanager
def server(
    folder: Path, port: int, *arguments: str, program: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    own = folder / str(port)
    own.mkdir()
    command = [
        str(program or server_binary()), *arguments, "--port", str(port), "--bind", LOOPBACK,
        "--dir", str(own), "--logfile", str(own / "log"),
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await check():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def ask(port: int, *command: str) -> Any:
    """One command to one server, as soon as it answers."""
    client = Redis(host=LOOPBACK, port=port, protocol=2, socket_timeout=TIMEOUT_S)
    async with client:
        for _ in range(200):
            try:
                return await client.execute_command(*command)
            except RedisConnectionError:
                await asyncio.sleep(0.05)
    raise TimeoutError


class Quota:
    """The parts of a quota service, on a client of any kind."""

    def __init__(self, url: str, folder: Path) -> None:
        self.usage = folder / "usage"
        self.file = folder / "registry.jsonl"
        self.store = RedisStore(connect(url, TIMEOUT_S, 8))
        self.registry = Registry(
            self.store,
            [(self.file, read_in_thread)],
            budgets=ArchivedBudgets(self.store, self.usage, 1, clock_ms=store_time_ms),
        )
        self.archiver = Archiver(self.store, self.usage, token="a")
        self.ledger = Ledger(self.store, self.registry, on_settled=self.archiver.wake)

    def declare(self) -> list[key_registry.KeyRecord]:
        limits = KeyLimits(budget_tokens=10_000, budget_period="month", hard_budget=True)
        records = [
            key_registry.new_key(b"s" * 32, tenant, limits, now_unix_s=time.time())[1]
            for tenant in TENANTS
        ]
        shared = KeyLimits(budget_tokens=10**6, budget_period="month", concurrency=1000)
        lines = [key_registry.owner_limits("organisation", ORGANISATION, shared), *records]
        for line in lines:
            key_registry.append(self.file, line)
        return records

    async def finish(self, record: key_registry.KeyRecord, request_id: str) -> None:
        names = {"request_id": request_id, "tenant": record.tenant, "key_id": record.key_id}
        await self.ledger.reserve(quota_pb2.ReserveRequest(num_output_tokens=90, **names))
        renewal = quota_pb2.LeaseRenewal(
            request_id=request_id, tenant=record.tenant, used_output_tokens=9
        )
        await self.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
        usage = quota_pb2.UsageRecord(num_output_tokens=20, **names)
        await self.ledger.settle(quota_pb2.SettleRequest(usage=usage))

    def bills(self) -> list[str]:
        lines = (line for file in usage_log.files(self.usage) for line in usage_log.read_file(file))
        return sorted(line.tenant for line in lines)


async def test_tenants_are_spread_over_a_cluster(folder, monkeypatch, capsys):
    ports = free_ports(6)
    # The second half are the ports of the cluster's bus.
    nodes, buses = ports[:3], ports[3:]
    with ExitStack() as servers:
        for port, bus in zip(nodes, buses, strict=True):
            options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--save", "")
            servers.enter_context(server(folder, port, *options))
        for index, port in enumerate(nodes):
            first, last = index * 16384 // 3, (index + 1) * 16384 // 3 - 1
            await ask(port, "CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for port, bus in zip(nodes[1:], buses[1:], strict=True):
            await ask(nodes[0], "CLUSTER", "MEET", LOOPBACK, str(port), str(bus))

        async def is_whole() -> bool:
            states = [await ask(port, "CLUSTER", "INFO") for port in nodes]
            return all(
                "cluster_state:ok" in str(each) and "cluster_known_nodes:3" in str(each)
                for each in states
            )

        await until(is_whole)
        url = f"redis+cluster://{LOOPBACK}:{nodes[0]},{LOOPBACK}:{nodes[1]}"
        quota = Quota(url, folder)
        for record in quota.declare():
            await quota.finish(record, "r1")
        await quota.ledger.look_at_all()
        await quota.ledger.reap()
        await quota.archiver.archive_all()
        assert quota.bills() == sorted(TENANTS)
        month = datetime.now(UTC).strftime("m%Y%m")
        window = f"{organisation_root(ORGANISATION)}:budget:{WHOLE}:{month}"
        assert await quota.store.execute("HMGET", window, "spent", "held") == [b"40", b"0"]
        sizes = [await ask(port, "DBSIZE") for port in nodes]
        assert all(sizes)
        monkeypatch.setenv("BATON_QUOTA_REDIS_URL", url)
        assert await asyncio.to_thread(keys.main, ["list"]) == 0
        listed = capsys.readouterr().out
        assert all(tenant in listed for tenant in TENANTS)
        await quota.store.close()


async def test_the_next_primary_is_found_by_sentinels(folder):
    first, second, sentinel = free_ports(3)
    with ExitStack() as servers:
        primary = servers.enter_context(server(folder, first, "--save", ""))
        replica_of = (
            "--save",
            "",
            "--replicaof",
            f"{LOOPBACK} {first}",
            "--repl-diskless-sync-delay",
            "0",
        )
        servers.enter_context(server(folder, second, *replica_of))
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor mymaster {LOOPBACK} {first} 1\n"
            "sentinel down-after-milliseconds mymaster 500\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        servers.enter_context(server(folder, sentinel, str(config), "--sentinel"))
        quota = Quota(f"redis+sentinel://{LOOPBACK}:{sentinel}/mymaster/0", folder)
        records = quota.declare()
        await until_served(quota, records[0], "r1")

        async def is_copied() -> bool:
            replicas = await ask(sentinel, "SENTINEL", "REPLICAS", "mymaster")
            size = await ask(second, "DBSIZE")
            return bool(replicas) and size == await ask(first, "DBSIZE")

        await until(is_copied)
        primary.kill()
        await until_served(quota, records[0], "r2")
        settled = quota_pb2.UsageRecord(
            request_id="r1", tenant=records[0].tenant, key_id=records[0].key_id
        )
        answer = await quota.ledger.settle(quota_pb2.SettleRequest(usage=settled))
        assert answer.repeated_settle
        assert await ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        await quota.store.close()


async def until_served(quota: Quota, record: key_registry.KeyRecord, request_id: str) -> None:
    """Finish a request; what fails while there is no primary is tried again."""

    async def is_served() -> bool:
        try:
            await quota.finish(record, request_id)
        except failures.Unavailable:
            return False
        return True

    await until(is_served)


@pytest.mark.parametrize("is_same", [True, False])
async def test_sentinels_are_shown_their_password(folder, is_same):
    port, sentinel = free_ports(2)
    own, theirs = folder / "password", folder / "sentinel-password"
    own.write_text("of Redis\n")
    theirs.write_text("of Redis\n" if is_same else "of Sentinels\n")
    config = folder / "sentinel.conf"
    config.write_text(
        f"sentinel monitor mymaster {LOOPBACK} {port} 1\n"
        'sentinel auth-pass mymaster "of Redis"\n'
        f'requirepass "{theirs.read_text().strip()}"\n'
    )
    with ExitStack() as servers:
        servers.enter_context(server(folder, port, "--save", "", "--requirepass", "of Redis"))
        servers.enter_context(server(folder, sentinel, str(config), "--sentinel"))
        url = f"redis+sentinel://{LOOPBACK}:{sentinel}/mymaster/0"
        client = connect(url, TIMEOUT_S, 2, PasswordFile(own), PasswordFile(theirs))
        await until(lambda: is_answered(client))
        await client.aclose()
        stranger = connect(url, TIMEOUT_S, 2, PasswordFile(own))
        with pytest.raises(MasterNotFoundError, match="AuthenticationError"):
            await stranger.execute_command("PING")
        await stranger.aclose()


@needs.redis_with_tls
async def test_sentinels_are_asked_over_tls_where_the_address_says_so(folder, tmp_path):
    files = Authority(tmp_path, "ours").issue(tmp_path / "member", san=f"IP:{LOOPBACK}")
    tls_port, sentinel_tls_port, port, sentinel = free_ports(4)
    tls = (
        *("--tls-cert-file", str(files.cert), "--tls-key-file", str(files.key)),
        *("--tls-ca-cert-file", str(files.ca), "--tls-replication", "yes"),
    )
    config = folder / "sentinel.conf"
    config.write_text(f"sentinel monitor mymaster {LOOPBACK} {tls_port} 1\n")
    program = Path(needs.REDIS_WITH_TLS)
    with ExitStack() as servers:
        options = ("--save", "", "--tls-port", str(tls_port), *tls)
        servers.enter_context(server(folder, port, *options, program=program))
        options = (str(config), "--sentinel", "--tls-port", str(sentinel_tls_port), *tls)
        servers.enter_context(server(folder, sentinel, *options, program=program))
        address = f"{LOOPBACK}:{sentinel_tls_port}/mymaster/0?ssl_ca_certs={files.ca}"
        # Both ask for a certificate, too.
        own = f"&ssl_certfile={files.cert}&ssl_keyfile={files.key}"
        client = connect(f"rediss+sentinel://{address}{own}", TIMEOUT_S, 2)
        await until(lambda: is_answered(client))
        await client.aclose()
        for url in (f"redis+sentinel://{address}", f"rediss+sentinel://{address}"):
            stranger = connect(url, TIMEOUT_S, 2)
            with pytest.raises(MasterNotFoundError):
                await stranger.execute_command("PING")
            await stranger.aclose()


async def test_a_sentinel_that_is_away_is_passed_over_at_once(folder, monkeypatch):
    port, sentinel, nobody = free_ports(3)
    config = folder / "sentinel.conf"
    config.write_text(f"sentinel monitor mymaster {LOOPBACK} {port} 1\n")
    pauses: list[float] = []

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)

    with ExitStack() as servers:
        servers.enter_context(server(folder, port, "--save", ""))
        servers.enter_context(server(folder, sentinel, str(config), "--sentinel"))
        await ask(sentinel, "PING")
        await ask(port, "PING")
        monkeypatch.setattr("redis.asyncio.retry.sleep", note)
        url = f"redis+sentinel://{LOOPBACK}:{nobody},{LOOPBACK}:{sentinel}/mymaster/0"
        client = connect(url, TIMEOUT_S, 2)
        assert await is_answered(client)
        await client.aclose()
    assert not pauses


async def is_answered(client: Any) -> bool:
    try:
        return await client.execute_command("PING") in (b"PONG", True)
    except RedisConnectionError:
        return False


@pytest.mark.parametrize("url", ["redis+sentinel://localhost:26379", "redis+sentinel://a,b/"])
def test_a_sentinel_url_names_its_primary(url):
    with pytest.raises(ValueError, match="mymaster"):
        connect(url, 1.0, 1)
