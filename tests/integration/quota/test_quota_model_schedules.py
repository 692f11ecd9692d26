"""Random schedules of the lease protocol against the real scripts on a real server.

Faults: repeated and delayed messages, gateways that die (settled late from their outbox, or never),
a failover that rolls the store back to an older state. Limits are of keys, tenants and an
organisation, over all models and over single ones, of requests, tokens and money. Every answer is
compared with `quota_model.py`; in the end:

  I1  each request is billed exactly once at its real cost
  I2  no hold, slot or lease is left after the lease time
  I3  without failover, nothing is spent above the budget, and no more tokens or requests than the
      buckets held and refilled
  I4  without failover, no more holders than slots produce at any time

BATON_TEST_QUOTA_SCHEDULES sets how many schedules of each kind run, BATON_TEST_SEED the first seed.
"""

import copy
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from baton.runtime.redis_connections import connect
from baton.testing.redis_server import RedisServer
from baton.wire import failures, key_registry, usage_log
from baton.wire.key_limits import tenant_root
from baton.wire.v1 import failure_pb2, quota_pb2
from services.quota.archive import read_entries
from services.quota.ledger import LeaseTerms, Ledger
from services.quota.prices import Prices
from services.quota.registry import Registry
from services.quota.store import RedisStore
from tests.integration.quota.limited_keys import PRICE_LIST, PRICES, Limited
from tests.integration.quota.quota_accounts import ModelCaller
from tests.integration.quota.quota_model import (
    ModelAnswer,
    ModelHolder,
    ModelUsage,
    ModelWanted,
    QuotaModel,
)
from tests.integration.quota.schedule_checks import check, num_of

DEFAULT_SCHEDULES = "600" if os.environ.get("BATON_TEST_LONG") else "75"
NUM_SCHEDULES = int(os.environ.get("BATON_TEST_QUOTA_SCHEDULES", DEFAULT_SCHEDULES))
FIRST_SEED = int(os.environ.get("BATON_TEST_SEED", "1"))
LEASE_MS = 30_000
DAY_START_MS = 1_799_971_200_000
# The most tokens that a holder produces between two of its renewals.
CREDIT = 20
# Now and then everybody stalls for the whole lease time, or for all of it but a moment.
TIME_STEPS_MS = [0, 1, 500, 1000, 2000, 4001] * 6 + [LEASE_MS - 1, LEASE_MS, LEASE_MS + 1]

# What the model's outcome looks like to a client; all others are rate limits.
REASONS = {
    "granted": "",
    "budget": "insufficient_quota",
    "exceeds_tokens": "request_exceeds_limit",
    "used_request_id": "invalid_value",
}
_STATE_NAMES = {1: "held", 2: "refused", 3: "lost", 4: "short"}
_SNAPSHOT = """
local kept = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  kept[#kept + 1] = key
  kept[#kept + 1] = redis.call('DUMP', key)
end
return kept
"""
_ROLL_BACK = """
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end
for i = 2, #ARGV, 2 do redis.call('RESTORE', ARGV[i], 0, ARGV[i + 1]) end
"""


class Holder:
    """What a gateway knows of one of its requests."""

    def __init__(self, caller: ModelCaller, prompt: int, granted: int, now_ms: int) -> None:
        self.caller = caller
        self.prompt = prompt
        # The part of it that quota was told of.
        self.told_prompt = prompt
        self.granted = granted
        self.produced = 0
        self.confirmed = 0
        # May produce up to here, until there; both move with every renewal that holds.
        self.allowed = granted
        self.fence_ms = now_ms + LEASE_MS

    def may_produce(self, now_ms: int) -> bool:
        return now_ms < self.fence_ms and self.produced < self.allowed


class Schedule:
    """One seeded run over an organisation or a tenant of its own.

    Each step draws from all of its attributes: the system, the model beside it, and the books of
    what was sent and is still under way.
    """

    def __init__(
        self, seed: int, store: RedisStore, prices: Prices, *, crash: bool, failover: bool
    ) -> None:
        self.random = random.Random(seed)
        self.crash, self.failover = crash, failover
        self.name = f"t{seed}-{int(crash)}{int(failover)}"
        self.start_ms = DAY_START_MS + self.random.choice([0, 8 * 3_600_000, 86_340_000])
        self.now_ms = self.start_ms
        self.limited = Limited(self.random, self.name)
        self.model = QuotaModel(self.limited.limits, PRICES, LEASE_MS, self.start_ms)
        self.store = store
        self.ledger = Ledger(
            self.store,
            Registry(self.store, []),
            LeaseTerms(LEASE_MS / 1000, 3600),
            prices=prices,
            clock_ms=lambda: self.now_ms,
        )
        self.live: dict[str, Holder] = {}
        self.sent_renewals: list[tuple[str, ModelCaller, ModelHolder, int]] = []
        self.truth: dict[str, tuple[ModelCaller, ModelUsage]] = {}
        self.abandoned: dict[str, Holder] = {}
        self.wire: list[tuple[int, str]] = []
        self.archive: list[usage_log.UsageLine] = []
        self.snapshots: list[tuple[list[bytes], QuotaModel]] = []
        self.admitted: list[ModelCaller] = []

    async def run(self) -> None:
        for record in self.limited.records():
            await self.store.execute_all(key_registry.redis_commands(record))
        for step in range(self.random.randint(20, 120)):
            self.now_ms += self.random.choice(TIME_STEPS_MS)
            if self.failover and self.random.random() < 0.2:
                await self._snapshot()
            await self._step(step)
            await self._deliver(due_by_ms=self.now_ms)
            if self.random.random() < 0.1:
                await self._archive()
        await self._finish()
        await check(self)

    async def _step(self, step: int) -> None:
        draw = self.random.random()
        if draw < 0.3:
            await self._reserve(f"r{step}")
        elif draw < 0.58 and self.live:
            await self._renew(self.random.choice(list(self.live)))
        elif draw < 0.62 and self.live:
            self._produce(self.random.choice(list(self.live)))
        elif draw < 0.82 and self.live:
            delays = self.random.choices(
                [0, 1000, 5000, 40_000], k=self.random.choice([1, 1, 2, 3])
            )
            self._end(self.random.choice(list(self.live)), delays)
        elif draw < 0.87 and self.live and self.crash:
            self._end(self.random.choice(list(self.live)), [self.random.choice([35_000, 90_000])])
        elif draw < 0.89 and self.live and self.crash:
            request_id = self.random.choice(list(self.live))
            self.abandoned[request_id] = self.live.pop(request_id)
        elif draw < 0.92 and self.failover and self.snapshots:
            await self._fail_over()
        elif draw < 0.95 and self.sent_renewals:
            await self._both_renew(*self.random.choice(self.sent_renewals), 0)
        elif draw < 0.97:
            await self.ledger.reap()
            self.model.reap(self.now_ms)

    async def _reserve(self, request_id: str) -> None:
        caller = self.random.choice(self.limited.callers)
        wanted = ModelWanted(
            self.random.randint(1, 20),
            self.random.randint(9, 60),
            fewest=self.random.choice([0, 0, 1]),
            fewest_prompt=self.random.choice([0, 0, 1]),
        )
        answer = await self._both_reserve(request_id, caller, wanted)
        if answer.outcome == "granted":
            self.admitted.append(caller)
            self.live[request_id] = Holder(caller, answer.prompt, answer.granted, self.now_ms)
            if self.random.random() < 0.2:
                again = await self._both_reserve(request_id, caller, wanted)
                assert again.outcome == "granted"
            if wanted.fewest_prompt:
                await self._tokenize(request_id, wanted)
        if not self.failover:
            self._check_concurrency()

    async def _tokenize(self, request_id: str, wanted: ModelWanted) -> None:
        """The prompt of a request for which an estimate was reserved has its tokens now."""
        holder = self.live[request_id]
        num_held, holder.prompt = holder.prompt, self.random.randint(1, 30)
        holder.told_prompt = 0
        if holder.prompt <= num_held:
            return
        exact = replace(wanted, prompt=holder.prompt, fewest_prompt=0, replaces=True)
        for _ in range(self.random.choice([1, 1, 2])):
            answer = await self._both_reserve(request_id, holder.caller, exact)
        if answer.outcome == "granted":
            holder.granted = holder.allowed = answer.granted
            holder.told_prompt = holder.prompt
        else:
            holder.prompt = 0
            self._end(request_id, [0])

    def _check_concurrency(self) -> None:
        producing = [h.caller for h in self.live.values() if h.may_produce(self.now_ms)]
        for place, limits in self.limited.limits.items():
            assert not limits.concurrency or num_of(place, producing) <= limits.concurrency, "I4"

    async def _both_reserve(
        self, request_id: str, caller: ModelCaller, wanted: ModelWanted
    ) -> ModelAnswer:
        """Reserve in the store and in the model; returns the answer that both gave."""
        expected = self.model.reserve(request_id, caller, wanted, self.now_ms)
        request = quota_pb2.ReserveRequest(
            request_id=request_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            model=caller.model,
            num_prompt_tokens=wanted.prompt,
            num_output_tokens=wanted.output,
            min_output_tokens=wanted.fewest,
            min_prompt_tokens=wanted.fewest_prompt,
            replaces_estimate=wanted.replaces,
        )
        refused = None
        try:
            response = await self.ledger.reserve(request)
        except failures.BatonError as error:
            refused = error
        if refused is None:
            assert expected.outcome == "granted"
            assert response.granted_output_tokens == expected.granted
            assert response.num_prompt_tokens == expected.prompt
            _compare_limits(response.limits, expected)
        else:
            _compare_refusal(refused, expected)
        return expected

    async def _renew(self, request_id: str) -> None:
        holder = self.live[request_id]
        wanted = holder.granted + self.random.choice([0, 0, 10, 60])
        used = min(wanted, holder.produced + CREDIT)
        said = ModelHolder(holder.prompt, holder.granted, used)
        self.sent_renewals.append((request_id, holder.caller, said, wanted))
        expected, state = await self._both_renew(
            request_id, holder.caller, said, wanted, holder.produced
        )
        if expected == "lost":
            self._end(request_id, [0])
            return
        holder.granted = state.granted_output_tokens
        holder.told_prompt = holder.prompt
        holder.confirmed = min(holder.produced, holder.granted)
        holder.allowed = min(used, holder.granted)
        holder.fence_ms = self.now_ms + state.expires_in_ms
        self._produce(request_id)

    async def _both_renew(
        self, request_id: str, caller: ModelCaller, said: ModelHolder, wanted: int, produced: int
    ) -> tuple[str, quota_pb2.LeaseState]:
        """Renew in the store and in the model; returns the answer that both gave."""
        expected = self.model.renew(request_id, caller, said, wanted, self.now_ms)
        renewal = quota_pb2.LeaseRenewal(
            request_id=request_id,
            tenant=caller.tenant,
            used_output_tokens=said.used,
            wanted_output_tokens=wanted,
            produced_output_tokens=produced,
            key_id=caller.key_id,
            model=caller.model,
            num_prompt_tokens=said.prompt,
            granted_output_tokens=said.granted,
        )
        response = await self.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
        state = response.leases[0]
        assert (_STATE_NAMES[state.state], state.granted_output_tokens) == expected
        assert bool(state.spent_limit) == (expected[0] in ("refused", "short"))
        return expected[0], state

    def _produce(self, request_id: str) -> None:
        holder = self.live[request_id]
        if holder.may_produce(self.now_ms):
            holder.produced = min(holder.allowed, holder.produced + self.random.randint(1, CREDIT))

    def _end(self, request_id: str, delays_ms: list[int]) -> None:
        """The holder is done; its settle messages arrive after `delays_ms`."""
        holder = self.live.pop(request_id)
        cached = self.random.randint(0, holder.prompt)
        self.truth[request_id] = holder.caller, ModelUsage(holder.prompt, cached, holder.produced)
        self.wire += [(self.now_ms + delay, request_id) for delay in delays_ms]

    async def _deliver(self, due_by_ms: int) -> None:
        self.random.shuffle(self.wire)
        due = [message for message in self.wire if message[0] <= due_by_ms]
        self.wire = [message for message in self.wire if message[0] > due_by_ms]
        for _, request_id in due:
            await self._settle(request_id)

    async def _settle(self, request_id: str) -> None:
        caller, usage = self.truth[request_id]
        expected = self.model.settle(request_id, caller, usage, self.now_ms)
        record = quota_pb2.UsageRecord(
            request_id=request_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            model=caller.model,
            num_prompt_tokens=usage.prompt,
            num_cached_tokens=usage.cached,
            num_output_tokens=usage.output,
        )
        response = await self.ledger.settle(quota_pb2.SettleRequest(usage=record))
        assert response.repeated_settle == (expected == "repeated")

    async def _snapshot(self) -> None:
        kept = await self.store.execute("EVAL", _SNAPSHOT, 0, f"baton:{{{self.name}}}*")
        self.snapshots = [*self.snapshots, (kept, copy.deepcopy(self.model))][-3:]

    async def _fail_over(self) -> None:
        """An older replica is promoted; gateways replay what they settled, and go on renewing."""
        kept, model = self.random.choice(self.snapshots)
        await self.store.execute("EVAL", _ROLL_BACK, 0, f"baton:{{{self.name}}}*", *kept)
        self.model = copy.deepcopy(model)
        # Leases that came back with the older state: the service looks at all tenants now and then.
        await self.ledger.look_at_all()
        for request_id in self.truth:
            self.wire.append((self.now_ms + self.random.choice([0, 1000, 3000]), request_id))

    async def _archive(self) -> None:
        for tenant in self.limited.tenants:
            stream = f"{tenant_root(tenant)}:usage"
            entries = await self.store.execute("XRANGE", stream, "-", "+")
            lines, rejected = read_entries(tenant, entries)
            assert not rejected
            self.archive += lines
            if entries:
                await self.store.execute("XDEL", stream, *(entry[0] for entry in entries))

    async def _finish(self) -> None:
        for request_id in list(self.live):
            self._end(request_id, [1000])
        last_ms = max([at for at, _ in self.wire], default=self.now_ms)
        self.now_ms = max(self.now_ms, last_ms)
        await self._deliver(due_by_ms=self.now_ms)
        self.end_ms = self.now_ms
        self.now_ms += LEASE_MS
        await self.ledger.reap()
        self.model.reap(self.now_ms)
        await self._archive()


def _compare_refusal(refused: failures.BatonError, expected: ModelAnswer) -> None:
    assert refused.reason == REASONS.get(expected.outcome, "rate_limit_exceeded"), expected
    assert refused.retry_after_s == expected.wait_ms / 1000
    assert expected.scope in refused.message
    if refused.limits:
        _compare_limits(refused.limits, expected)


def _compare_limits(limits: failure_pb2.LimitState, expected: ModelAnswer) -> None:
    requests = (limits.limit_requests, limits.remaining_requests, limits.requests_scope)
    tokens = (limits.limit_tokens, limits.remaining_tokens, limits.tokens_scope)
    assert (requests, tokens) == (expected.requests, expected.tokens)


@pytest.fixture(scope="module")
def server():
    with TemporaryDirectory(prefix="baton-") as folder, RedisServer(Path(folder)) as running:
        yield running


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("crash", "failover"),
    [(False, False), (True, False), (True, True)],
    ids=["late-and-repeated-messages", "and-gateway-crashes", "and-failover"],
)
async def test_random_schedules_bill_exactly_and_leave_nothing_behind(
    server, tmp_path, crash, failover
):
    store = RedisStore(connect(server.url, 60.0, 4))
    (tmp_path / "prices.json").write_text(json.dumps(PRICE_LIST))
    prices = Prices(tmp_path / "prices.json")
    for seed in range(FIRST_SEED, FIRST_SEED + NUM_SCHEDULES):
        schedule = Schedule(seed, store, prices, crash=crash, failover=failover)
        try:
            await schedule.run()
        except BaseException:
            print(f"seed {seed}: BATON_TEST_SEED={seed} BATON_TEST_QUOTA_SCHEDULES=1")
            raise
        await store.execute("FLUSHDB")
    await store.close()
