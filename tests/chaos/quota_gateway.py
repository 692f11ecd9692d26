"""A gateway without HTTP and workers: its own code that reserves, renews, extends and settles, for
clients that all spend the last tokens of one key. It can kill a process, or itself, at a step.

Everything that its clients see goes to a journal, whose lines survive its death.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from baton.runtime.shared_stream import FrameStream
from baton.system.clock import SystemClock
from baton.wire.failures import BatonError
from baton.wire.v1 import quota_pb2
from services.gateway.clients.grpc import GrpcQuota, dial_worker
from services.gateway.clients.protocols import CallContext
from services.gateway.openai.endpoints import ENDPOINTS
from services.gateway.openai.generation import GenerationRequest, PlainText
from services.gateway.request import submission
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.incoming import IncomingRequest
from services.gateway.request.job import Job, OutputPlan, Prompt, TokenCounts
from services.gateway.request.payment import CreditMeter, Payment
from services.gateway.request.prompt_estimate import PromptEstimate
from services.gateway.request.reservation import Reservations
from services.gateway.request.trace import RequestTrace
from services.gateway.routing.models import ServedModel
from services.gateway.tenants import leases
from services.gateway.tenants.lease import Lease
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.outbox import Outbox
from services.gateway.tenants.outbox_files import DiskFiles, waiting_records
from services.gateway.tenants.principal import Principal
from services.gateway.tenants.quota_outage import GuardedQuota
from services.gateway.tenants.refusals import Refusals
from services.gateway.workers.migration import EarlyMigration
from services.gateway.workers.worker_links import WorkerLinks

T = TypeVar("T")

STEPS = ("reserve", "renew", "extend", "settle")
MOMENTS = ("before", "during", "after")
# The leases of these rounds live a second, not 30.
BEAT_S = 0.3
PROMPT_TOKENS = 8
FIRST_TOKENS = 100
MAX_TOKENS = 200
_MORE_TOKENS = 50
_TOKEN_S = 0.002
_BURST = 4
_GAP_S = 5.0
# A "during" kill comes so much later than the call, at most.
_DURING_S = 0.004
_END_S = 60.0


@dataclass(frozen=True)
class Strike:
    """A kill: of these processes, or of the gateway itself if there are none. It waits until the
    file `armed` exists, and then lets the step pass `num_passed` times."""

    step: str
    moment: str
    armed: Path
    num_passed: int = 0
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class GatewayPlan:
    """One life of a gateway. `folder` has its outbox and its journal."""

    name: str
    folder: Path
    quota: tuple[str, ...]
    principal: Principal
    seed: int
    # Its clients ask until this file exists.
    over: Path
    num_clients: int = 0
    strike: Strike | None = None


class Journal:
    """What clients of this gateway were given, a line for each event."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, request_id: str, num_tokens: int = 0) -> None:
        clock = SystemClock()
        os.write(self._file, f"{event} {request_id} {num_tokens} {clock.unix():.6f}\n".encode())


class Striker:
    """Carries out a strike, once."""

    def __init__(self, strike: Strike | None, rng: random.Random) -> None:
        self._strike = strike
        self._num_passed = 0
        self._rng = rng

    async def around(self, step: str, call: Callable[[], Awaitable[T]]) -> T:
        strike = self.due(step)
        if strike is None:
            return await call()
        if strike.moment == "before":
            kill(strike)
        elif strike.moment == "during":
            loop = asyncio.get_running_loop()
            loop.call_later(self._rng.uniform(0, _DURING_S), kill, strike)
        answer = await call()
        if strike.moment == "after":
            kill(strike)
        return answer

    def due(self, step: str) -> Strike | None:
        strike = self._strike
        if strike is None or strike.step != step or not strike.armed.exists():
            return None
        self._num_passed += 1
        if self._num_passed <= strike.num_passed:
            return None
        self._strike = None
        return strike


def kill(strike: Strike) -> None:
    for pid in strike.pids or (os.getpid(),):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class StruckRenewals:
    """A renewal stream that strikes at a beat, or at an ask for more."""

    def __init__(self, stream: FrameStream[Any, Any], striker: Striker) -> None:
        self._stream = stream
        self._striker = striker

    async def read(self) -> Any:
        return await self._stream.read()

    async def write(self, frame: quota_pb2.RenewRequest) -> None:
        step = "renew" if frame.gateway_id else "extend"
        await self._striker.around(step, lambda: self._stream.write(frame))

    async def close(self) -> None:
        await self._stream.close()


class StruckQuota:
    """The quota client, with a strike around its calls."""

    def __init__(self, quota: GrpcQuota, striker: Striker) -> None:
        self._quota = quota
        self._striker = striker

    async def authenticate(self, key_digest: bytes, context: CallContext) -> Any:
        return await self._quota.authenticate(key_digest, context)

    async def reserve(self, request: quota_pb2.ReserveRequest, context: CallContext) -> Any:
        return await self._striker.around("reserve", lambda: self._quota.reserve(request, context))

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        await self._striker.around("settle", lambda: self._quota.settle(record, context))

    async def open_renewals(self) -> StruckRenewals:
        return StruckRenewals(await self._quota.open_renewals(), self._striker)

    async def probe(self, deadline_s: float) -> None:
        await self._quota.probe(deadline_s)


@dataclass
class Answer:
    """A choice of an answer, as usage records count it."""

    num_tokens: int = 0
    finish_reason: str = "stop"
    is_unpaid: bool = False


@dataclass
class _Client:
    """A client that stays, as the trace of a request knows it."""

    gone_reason: str = "cancelled"
    gone_s: float | None = None
    has_left = False


@dataclass
class Gateway:
    """The parts of a gateway that keep accounts."""

    plan: GatewayPlan
    clock: SystemClock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.plan.seed} {self.plan.name}")
        self.journal = Journal(self.plan.folder / "journal")
        self.files = DiskFiles(self.plan.folder / "outbox")
        client = StruckQuota(
            GrpcQuota(self.plan.quota, self.clock), Striker(self.plan.strike, self.rng)
        )
        self.quota = GuardedQuota(client, self.clock, self.rng)
        buckets = LocalBuckets(self.clock)
        self.renewer = LeaseRenewer(self.quota, buckets, self.plan.name, self.rng)
        self.outbox = Outbox(self.files, client, asyncio.to_thread)
        migration = EarlyMigration(self.rng, lambda *_: False, self.clock)
        links = WorkerLinks(dial_worker, self.plan.name, self.clock, migration)
        self.auditor = GatewayAuditor(self.renewer, links)
        self.reservations = Reservations(
            self.quota, buckets, Refusals(self.clock), self.renewer, self.outbox, self.auditor
        )

    async def run(self) -> None:
        """Serve the clients, then settle what is left; ends when nothing waits."""
        async with asyncio.TaskGroup() as tasks:
            owners = [self.quota, self.renewer, self.outbox]
            running = [tasks.create_task(owner.run()) for owner in owners]
            async with asyncio.timeout(_END_S), asyncio.TaskGroup() as clients:
                for number in range(self.plan.num_clients):
                    clients.create_task(self._client(number))
            async with asyncio.timeout(_END_S):
                while self._waits():
                    await asyncio.sleep(0.02)
            assert not self.outbox.num_dropped
            assert not list(self.auditor.violations())
            for task in running:
                task.cancel()

    def _waits(self) -> bool:
        segments = [self.files.read(number) for number in self.files.segments()]
        return bool(self.outbox.num_waiting) or any(map(waiting_records, segments))

    async def _client(self, number: int) -> None:
        turn = 0
        while not self.plan.over.exists():
            request_id = f"{self.plan.name}-{number}-{turn}"
            turn += 1
            try:
                await self._request(request_id)
            except BatonError:
                await asyncio.sleep(self.rng.uniform(0.01, 0.05))

    async def _request(self, request_id: str) -> None:
        job = self._job(request_id)
        trace = RequestTrace(job.incoming, _Client(), self.clock)
        answer = Answer()
        trace.usage.num_prompt_tokens, trace.usage.choices = PROMPT_TOKENS, [answer]
        self.journal.write("asked", request_id)
        is_granted = False
        try:
            with self.auditor.request(trace):
                num_tokens = self.rng.choice([PROMPT_TOKENS // 2, PROMPT_TOKENS, 2 * PROMPT_TOKENS])
                estimate = PromptEstimate(num_tokens, fewest=1)
                request = submission.reserve_estimate(job, estimate, FIRST_TOKENS)
                async with self.reservations.reserve(job, request, trace) as lease:
                    counts = TokenCounts(job.prompt.num_tokens, job.plan.num_expected_tokens)
                    await self.reservations.fit(job, counts, lease, trace)
                    self.journal.write("granted", request_id, lease.num_granted)
                    is_granted = trace.usage.prompt_was_read = True
                    await self._produce(lease, answer, trace)
        finally:
            self.journal.write(
                "settled" if is_granted else "refused", request_id, answer.num_tokens
            )

    async def _produce(self, lease: Lease, answer: Answer, trace: RequestTrace) -> None:
        num_wanted = self.rng.randint(4, MAX_TOKENS)
        meter = CreditMeter(
            lease, num_choices=1, max_tokens=MAX_TOKENS, extension_tokens=_MORE_TOKENS
        )
        payment = Payment(lease, meter, self.renewer)
        with payment.following():
            while answer.num_tokens < num_wanted and not meter.starved(0, answer.num_tokens):
                payment.check()
                if (num_free := meter.num_credited - answer.num_tokens) > 0:
                    answer.num_tokens += min(num_free, _BURST, num_wanted - answer.num_tokens)
                    trace.usage.num_received = answer.num_tokens
                    self.journal.write("given", trace.request_id, answer.num_tokens)
                    meter.accepted(0, answer.num_tokens)
                    await asyncio.sleep(self.rng.uniform(0, 2 * _TOKEN_S * _BURST))
                else:
                    try:
                        async with asyncio.timeout(_GAP_S):
                            await payment.changed()
                    except TimeoutError:
                        raise payment.overdue() from None

    def _job(self, request_id: str) -> Job:
        incoming = IncomingRequest(
            request_id, ENDPOINTS["/v1/completions"], _no_body, "", deadline_s=60.0
        )
        model = ServedModel("fp", "m", "", 16, 4096, 1000, frozenset(), 1)
        prompt = Prompt(bytes(4 * PROMPT_TOKENS), b"", b"", None)  # type: ignore[arg-type]
        request = GenerationRequest("completions", "m", PlainText("hello"))
        return Job(
            incoming,
            incoming.deadlines(_GAP_S, self.clock),
            self.plan.principal,
            request,
            model,
            request,
            prompt,
            OutputPlan(MAX_TOKENS, FIRST_TOKENS, 0),
        )


async def _no_body() -> bytes:
    return b""


def main(plan: GatewayPlan) -> None:
    """The whole process."""
    output = os.open(plan.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    leases.BEAT_S = BEAT_S
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_live(plan))


async def _live(plan: GatewayPlan) -> None:
    """Its channel belongs to the loop that runs when it is made."""
    await Gateway(plan).run()


def events(folder: Path) -> Sequence[tuple[str, str, int, float]]:
    """The journal of a gateway: event, request, tokens, time."""
    rows = (line.split() for line in (folder / "journal").read_text().splitlines())
    return [(event, name, int(num), float(at)) for event, name, num, at in rows]
