"""Rounds of one crash each: four gateways with a hundred clients, two quota replicas and a Redis,
all of them processes, around the last tokens of a key with a hard budget.

One of them is killed at a step of the protocol; Redis comes back empty, or as the copy that was
saved earlier in the round. Times are those of a hurry: a lease lives a second, not 30.
"""

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.runtime.grpc_channel import open_balanced_channel
from baton.runtime.process import run
from baton.system.clock import SystemClock
from baton.testing.redis_server import RedisServer
from baton.wire import key_registry, usage_log
from baton.wire.call_methods import AUTHENTICATE
from baton.wire.failures import AuthenticationFailed, BatonError
from baton.wire.key_registry import KeyLimits, KeyRecord, Revocation
from baton.wire.usage_log import UsageLine
from baton.wire.v1 import quota_pb2, quota_pb2_grpc
from services.gateway.tenants.principal import AccountLimits, Principal
from services.quota import archive, instruments
from services.quota.__main__ import serve
from services.quota.recent_settles import KEPT_S
from services.quota.settings import Settings
from tests.chaos import quota_gateway
from tests.chaos.quota_gateway import MOMENTS, PROMPT_TOKENS, STEPS, GatewayPlan, Strike
from tests.chaos.trials import Missed

NUM_GATEWAYS, NUM_CLIENTS, NUM_REPLICAS = 4, 100, 2
BUDGETS = (6_000, 12_000, 24_000)
# It must not be spent before the copy is made.
STALE_BUDGETS = (24_000, 48_000)
MAX_PASSED = 3
LEASE_S = 1.0
# A step that has not come by then does not come.
STRIKE_S = 10.0
# The clients go on for so long when the victim is back.
REST_S = 0.3
# A busy machine must not decide.
TIMEOUT_S = 60.0
# After the last lease can have ended; the reaper looks every 0.1 s.
HOLDS_S = 10.0
_LOCK_MS = 500
_SECRET = b"s" * 32
_POLL_S = 0.002

ARCHIVE = "archive"
VICTIMS = ("gateway", "quota", "all quota", "empty redis", "stale redis")
ALL_STEPS = (*STEPS, ARCHIVE)
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([quota_gateway.__name__, __name__])


def until(is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> bool:
    """Wait; returns whether it came to be so in time."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def run_quota(settings: Settings, log: Path) -> None:
    """A quota replica, as its program runs it. A dead archiver's lock ends soon."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    archive.LOCK_MS = _LOCK_MS
    run("quota", partial(serve, settings=settings), instruments.KNOWN_SERIES)


@dataclass
class Story:
    """What the clients of all gateways saw of one request."""

    asked_s: float
    granted_s: float | None = None
    ended_s: float | None = None
    num_output: int = 0
    # False: it was never granted, or its gateway died before it was told.
    is_settled: bool = False

    @property
    def num_tokens(self) -> int:
        return PROMPT_TOKENS + self.num_output if self.granted_s else 0


class QuotaStack:
    """Redis and the quota replicas, from round to round. Killed parts are started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = folder / "registry.jsonl"
        self.redis = RedisServer(folder)
        ports = free_ports(NUM_REPLICAS)
        self.addresses = tuple(f"{LOOPBACK}:{port}" for port in ports)
        self.replicas: dict[int, Any] = {}

    def start(self) -> None:
        self.redis.start()
        for number in range(NUM_REPLICAS):
            self.start_replica(number)

    def close(self) -> None:
        for process in self.replicas.values():
            process.kill()
            process.join()
        self.redis.kill()

    def start_replica(self, number: int) -> None:
        settings = Settings(
            listen=self.addresses[number],
            redis_url=self.redis.url,
            registry_file=self.registry,
            usage_dir=self.usage(number),
            num_archives=NUM_REPLICAS,
            lease_s=LEASE_S,
            reap_interval_s=0.1,
            redis_timeout_s=5.0,
            registry_interval_s=0.05,
            archive_interval_s=0.05,
        )
        arguments = (settings, self.folder / f"quota-{number}.log")
        process = _processes.Process(target=run_quota, args=arguments)
        process.start()
        self.replicas[number] = process

    def usage(self, number: int) -> Path:
        return self.folder / f"usage-{number}"

    def redis_client(self) -> Redis:
        return Redis.from_url(self.redis.url, socket_timeout=5)

    def new_key(self, tenant: str, **limits: Any) -> tuple[str, KeyRecord]:
        key, record = key_registry.new_key(_SECRET, tenant, KeyLimits(**limits), now_unix_s=1)
        key_registry.append(self.registry, record)
        return key, record

    def knows(self, key: str) -> bool:
        """Whether the service takes this key now; an outage is neither."""
        digest = key_registry.key_digest(_SECRET, key)
        request = quota_pb2.AuthenticateRequest(key_digest=digest)
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                asyncio.run(self._authenticate(request))
                return True
            except AuthenticationFailed:
                return False
            except BatonError:
                time.sleep(_POLL_S)
        raise TimeoutError

    async def _authenticate(self, request: quota_pb2.AuthenticateRequest) -> None:
        async with open_balanced_channel(self.addresses) as channel:
            stub = quota_pb2_grpc.QuotaStub(channel)
            calls = SharedCalls.over_grpc(stub, SystemClock(), is_balanced=True)
            try:
                await calls.call(AUTHENTICATE, request, CallTerms(5.0))
            finally:
                await calls.close()

    def lines(self, tenant: str) -> list[UsageLine]:
        """The archived lines of a tenant, of all replicas."""
        return [
            line
            for file in self._archives()
            for line in usage_log.read_file(file)
            if line.tenant == tenant
        ]

    def num_archived_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._archives())

    def forget_usage(self) -> None:
        """Empty the archives: replicas that start, and budgets that are restored, read all of them,
        and so would a thousand rounds."""
        for file in self._archives():
            os.truncate(file, 0)

    def _archives(self) -> list[Path]:
        return [
            file for number in range(NUM_REPLICAS) for file in usage_log.files(self.usage(number))
        ]


@dataclass
class Round:
    """One crash. `victim`: gateway, quota, all quota, empty redis, stale redis."""

    stack: QuotaStack
    victim: str
    step: str
    seed: int
    copied_s: float = 0.0
    struck_s: float = 0.0
    back_s: float = 0.0
    gateways: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tenant = f"t{self.seed}-{self.victim.replace(' ', '-')}-{self.step}"
        self.folder = self.stack.folder / self.tenant
        self.folder.mkdir()
        self.armed, self.over = self.folder / "armed", self.folder / "over"
        is_stale = self.victim == "stale redis"
        self.budget = self.rng.choice(STALE_BUDGETS if is_stale else BUDGETS)
        if not is_stale:
            self.armed.touch()
        self.key, self.record = self.stack.new_key(
            self.tenant, budget_tokens=self.budget, budget_period="month", hard_budget=True
        )

    def run(self) -> float:
        """Returns how long something was held after the end. Raises Missed when the step never
        came."""
        revoked, revoked_record = self.stack.new_key(self.tenant)
        assert self.stack.knows(self.key)
        assert self.stack.knows(revoked)
        with ExitStack() as ending:
            ending.callback(self._end_gateways)
            self._start_gateways()
            if self.victim == "stale redis":
                assert until(self._has_begun)
                time.sleep(self.rng.uniform(0, 0.1))
                with self.stack.redis_client() as client:
                    self.copied_s = time.time()
                    client.save()
            late, _ = self.stack.new_key(self.tenant)
            key_registry.append(self.stack.registry, Revocation(revoked_record.key_id, 2))
            if self.victim == "stale redis":
                assert self.stack.knows(late)
                assert until(lambda: not self.stack.knows(revoked))
            self._strike()
            time.sleep(self.rng.uniform(0, 0.2))
            self._bring_back()
            time.sleep(REST_S)
            self.over.touch()
            for process in self.gateways:
                process.join(TIMEOUT_S)
        assert [process.exitcode for process in self.gateways] == [0] * len(self.gateways)
        assert self.stack.knows(self.key)
        assert self.stack.knows(late), "a key is lost"
        assert not self.stack.knows(revoked), "a revoked key works"
        held_s = self._check()
        self.stack.forget_usage()
        return held_s

    def _start_gateways(self) -> None:
        for number in range(NUM_GATEWAYS):
            self._start_gateway(number, NUM_CLIENTS // NUM_GATEWAYS, self._plan_strike(number))

    def _has_begun(self) -> bool:
        """Whether the clients of every gateway ask."""
        journals = [self.folder / f"gateway-{number}" / "journal" for number in range(NUM_GATEWAYS)]
        return all(journal.exists() and journal.stat().st_size for journal in journals)

    def _plan_strike(self, number: int) -> Strike | None:
        if number or self.step == ARCHIVE:
            return None
        moment, num_passed = self.rng.choice(MOMENTS), self.rng.randint(0, MAX_PASSED)
        return Strike(self.step, moment, self.armed, num_passed, self._pids())

    def _pids(self) -> tuple[int, ...]:
        """The processes that a gateway kills; none = itself."""
        if self.victim == "gateway":
            return ()
        if self.victim.endswith("quota"):
            replicas = self.stack.replicas
            killed = replicas if self.victim == "all quota" else [self.rng.choice([*replicas])]
            self.killed = list(killed)
            return tuple(replicas[number].pid for number in killed)
        return (self.stack.redis.pid,)

    def _start_gateway(self, number: int, num_clients: int, strike: Strike | None) -> None:
        folder = self.folder / f"gateway-{number}"
        folder.mkdir(exist_ok=True)
        key_id = self.record.key_id
        limits = AccountLimits(key_id, hard_budget=True, budget_tokens=self.budget)
        principal = Principal(self.tenant, key_id, limits=(limits,))
        name = f"{self.tenant}-{number}"
        plan = GatewayPlan(
            name,
            folder,
            self.stack.addresses,
            principal,
            self.seed,
            self.over,
            num_clients,
            strike,
        )
        process = _processes.Process(target=quota_gateway.main, args=(plan,))
        process.start()
        if number < len(self.gateways):
            self.gateways[number] = process
        else:
            self.gateways.append(process)

    def _end_gateways(self) -> None:
        for process in self.gateways:
            process.kill()
            process.join()

    def _strike(self) -> None:
        """Arm the strike, and wait for its victim's death."""
        if self.step == ARCHIVE:
            before = self.stack.num_archived_bytes()
            if not until(lambda: self.stack.num_archived_bytes() > before, STRIKE_S):
                raise Missed
            for pid in self._pids() or (self.gateways[0].pid,):
                os.kill(pid, signal.SIGKILL)
        self.armed.touch()
        if not until(self._is_dead, STRIKE_S):
            raise Missed
        self.struck_s = time.time()

    def _is_dead(self) -> bool:
        if self.victim == "gateway":
            return bool(self.gateways[0].exitcode == -signal.SIGKILL)
        if self.victim.endswith("quota"):
            codes = [self.stack.replicas[number].exitcode for number in self.killed]
            return codes == [-signal.SIGKILL] * len(codes)
        return self.stack.redis.exit_status == -signal.SIGKILL

    def _bring_back(self) -> None:
        if self.victim == "gateway":
            self._start_gateway(0, 0, None)
        elif self.victim.endswith("quota"):
            for number in self.killed:
                self.stack.start_replica(number)
        else:
            self.stack.redis.kill()
            if self.victim == "empty redis":
                (self.stack.folder / "dump.rdb").unlink(missing_ok=True)
            self.stack.redis.start()
        self.back_s = time.time()

    def _check(self) -> float:
        stories = self._stories()
        # What an empty Redis lost is settled again once quota has seen that it is another one.
        assert until(lambda: not self._unbilled(stories), HOLDS_S), self._unbilled(stories)
        ended_s = time.monotonic()
        with self.stack.redis_client() as client:
            is_clear = until(lambda: not self._left(client), HOLDS_S + LEASE_S)
            assert is_clear, self._left(client)
            held_s = time.monotonic() - ended_s
            spent = self._sum(client, "spent")
            lapsed = self._lapsed(client)
        lines = self.stack.lines(self.tenant)
        self._check_bills(stories, lines)
        given = sum(story.num_tokens for story in stories.values())
        lost = sum(story.num_tokens for story in self._lost(stories, lines))
        assert given <= self.budget + lost, f"{given} tokens of {self.budget}; {lost} may be lost"
        # What was settled longer before is not settled again: it is in the archive.
        was_slow = self.victim == "stale redis" and self.back_s - self.copied_s > KEPT_S / 2
        assert was_slow or spent >= given, f"{given} tokens were given, {spent} are charged"
        for name, charged in lapsed.items():
            assert charged >= stories[name].num_tokens, f"{name}: {stories[name]} for {charged}"
        return held_s

    def _unbilled(self, stories: dict[str, Story]) -> set[str]:
        """The settled requests that have no line in any archive."""
        billed = {line.request_id for line in self.stack.lines(self.tenant)}
        return {name for name, story in stories.items() if story.is_settled} - billed

    def _left(self, client: Redis) -> dict[str, int]:
        """What is still held or waits for the archive."""
        root = key_registry.tenant_root(self.tenant)
        try:
            slots = client.hget(f"{root}:account:{self.record.key_id}", "slots")
            found = {
                "leases": client.zcard(f"{root}:leases"),
                "slots": int(slots or 0),
                "held": self._sum(client, "held"),
                "unarchived": client.xlen(f"{root}:usage"),
            }
        except RedisError:
            return {"redis": 1}
        return {name: num for name, num in found.items() if num}

    def _sum(self, client: Redis, field: str) -> int:
        names = client.keys(f"{key_registry.tenant_root(self.tenant)}:budget:*")
        return sum(int(client.hget(name, field) or 0) for name in names)

    def _lapsed(self, client: Redis) -> dict[str, int]:
        """What the requests without an end are charged."""
        prefix = f"{key_registry.tenant_root(self.tenant)}:request:"
        names = client.keys(f"{prefix}*")
        return {
            name.decode().removeprefix(prefix): int(client.hget(name, "charged")) for name in names
        }

    def _stories(self) -> dict[str, Story]:
        stories: dict[str, Story] = {}
        for number in range(NUM_GATEWAYS):
            for event, name, num, at in quota_gateway.events(self.folder / f"gateway-{number}"):
                story = stories.setdefault(name, Story(at))
                if event == "granted":
                    story.granted_s = at
                elif event == "given":
                    story.num_output = num
                elif event in ("settled", "refused"):
                    story.ended_s, story.is_settled = at, event == "settled"
        return stories

    def _check_bills(self, stories: dict[str, Story], lines: list[UsageLine]) -> None:
        """One bill for each request: of its real tokens, or, if its gateway died, of no more."""
        bills = {line.request_id: line for line in usage_log.final_lines(lines)}
        assert not set(bills) - set(stories)
        for name, story in stories.items():
            line = bills.get(name)
            if story.is_settled:
                assert line is not None, f"{name} has no bill"
                told = (line.num_prompt_tokens, line.num_output_tokens, line.provisional)
                assert told == (PROMPT_TOKENS, story.num_output, False), (name, line)
            elif story.ended_s is not None:
                assert line is None or not line.num_tokens, ("refused", name, line)
            elif line is not None:
                assert line.num_output_tokens <= story.num_output, (name, line)

    def _lost(self, stories: dict[str, Story], lines: list[UsageLine]) -> Iterator[Story]:
        """The requests that the Redis which came back did not know, or not all of."""
        if not self.victim.endswith("redis"):
            return
        archived = {
            line.request_id for line in lines if line.settled_unix_ms < self.struck_s * 1000
        }
        for name, story in stories.items():
            if story.granted_s is None or story.granted_s > self.back_s:
                continue
            if self.victim == "stale redis":
                is_lost = story.ended_s is None or story.ended_s > self.copied_s
            else:
                is_lost = name not in archived
            if is_lost:
                yield story


@contextmanager
def quota_stack(folder: Path) -> Iterator[QuotaStack]:
    """The parts, started. `folder` must be short."""
    stack = QuotaStack(folder)
    try:
        stack.start()
        yield stack
    finally:
        stack.close()
