"""An open loop of requests against a real router, with workers in memory that take real time.

A worker decodes `slots` requests at once; each has its first token after `first_token_s` and ends
after `service_s`, or later as its prompt is longer. Where a full batch has taken in one more, the
newest one that is not of a quiet tenant stands still. A client whose first token is not there in
time leaves, as a gateway does, and what its worker computed was for nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from baton.wire.failures import BatonError
from baton.wire.v1 import router_pb2
from tests.unit.router.conftest import MODEL, RouterInMemory, WorkerInMemory


@dataclass(frozen=True)
class Outcome:
    """The end of one request; `first_token_s` is None when it never came."""

    arrived_at: float
    ended_at: float
    first_token_s: float | None = None
    error: BatonError | None = None
    tenant: str = ""


@dataclass(eq=False)
class _Decode:
    """A request that decodes, or stands still."""

    is_quiet: bool
    goes: asyncio.Event = field(default_factory=asyncio.Event)
    stops: asyncio.Event = field(default_factory=asyncio.Event)

    def let(self, *, go: bool) -> None:
        changed, other = (self.goes, self.stops) if go else (self.stops, self.goes)
        changed.set()
        other.clear()


@dataclass
class OpenLoop:
    """Sends requests to `router` and plays its workers; `outcomes` collects the ends.

    Without prefill workers the decode workers read the prompts.
    """

    router: RouterInMemory
    num_workers: int = 1
    num_prefill: int = 0
    slots: int = 4
    first_token_s: float = 0.6
    service_s: float = 1.0
    num_prompt_tokens: int = 64
    # Answers are shorter or longer by up to this share of `service_s`.
    spread: float = 0.0
    seed: int = 7
    outcomes: list[Outcome] = field(default_factory=list)
    # The tenants in the order in which their requests got workers.
    granted: list[str] = field(default_factory=list)
    num_too_late: int = 0
    # How long each answer that stood still did so.
    pauses_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._number = 0
        self._tasks: asyncio.TaskGroup
        self._running: dict[str, int] = {}
        self._workers: dict[str, WorkerInMemory] = {}
        for number in range(self.num_workers):
            worker = self.router.decode(f"d{number}")
            worker.register.max_num_seqs = self.slots
            worker.register.num_blocks = 100_000
            worker.start(boot_epoch=2)
            self._workers[f"d{number}"] = worker
            self._running[f"d{number}"] = 0
            self._report(f"d{number}")
        self._decoding: dict[str, list[_Decode]] = {name: [] for name in self._workers}
        self._prefills = {
            f"p{number}": self.router.prefill(f"p{number}") for number in range(self.num_prefill)
        }

    @property
    def capacity_per_s(self) -> float:
        return self.num_workers * self.slots / self.service_s

    def served(self, begin: float, end: float, tenant: str = "") -> list[Outcome]:
        """The requests that were answered in this time."""
        return [
            each
            for each in self.outcomes
            if each.first_token_s is not None
            and begin <= each.ended_at < end
            and each.tenant == tenant
        ]

    def refused(self, begin: float, end: float, tenant: str = "") -> list[Outcome]:
        """The requests that came in this time and were refused."""
        return [
            each
            for each in self.outcomes
            if each.error and begin <= each.arrived_at < end and each.tenant == tenant
        ]

    async def run(self, *streams: Callable[["OpenLoop"], Any]) -> None:
        """Run all streams of requests to their ends."""
        async with asyncio.TaskGroup() as self._tasks:
            sending = [self._tasks.create_task(stream(self)) for stream in streams]
            await asyncio.gather(*sending)
            while any(self._running.values()):
                await asyncio.sleep(self.service_s)

    async def send(self, per_s: float, seconds: float, **fields: Any) -> None:
        """Send requests at random times, `per_s` in the mean."""
        end = self.router.clock.now() + seconds
        while True:
            await asyncio.sleep(self._random.expovariate(per_s))
            if self.router.clock.now() >= end:
                return
            self._tasks.create_task(self.one(**fields))

    async def one(self, due_s: float | None = None, **fields: Any) -> None:
        """One request, from its arrival to its end."""
        clock, arrived_at = self.router.clock, self.router.clock.now()
        tenant = fields.get("tenant", "")
        self._number += 1
        request_id = f"r{self._number}"
        request = router_pb2.PickRequest(
            request_id=request_id,
            model_fp=MODEL,
            num_prompt_tokens=self.num_prompt_tokens,
            expected_output_tokens=100,
            num_choices=1,
        )
        request.MergeFrom(router_pb2.PickRequest(**fields))
        try:
            pick = await self.router.core.pick(request, due_s)
        except BatonError as error:
            self.outcomes.append(Outcome(arrived_at, clock.now(), None, error, tenant))
            return
        self.granted.append(tenant)
        worker_id = pick.decode.worker_id
        longer = request.num_prompt_tokens / self.num_prompt_tokens
        spread = 1 + self.spread * self._random.uniform(-1, 1)
        first_token_s, service_s = self.first_token_s * longer, self.service_s * longer * spread
        left_s = float("inf") if due_s is None else arrived_at + due_s - clock.now()
        self._running[worker_id] += 1
        if pick.HasField("prefill"):
            self._prefills[pick.prefill.worker_id].load(request_id)
        self._report(worker_id, request_id)
        await asyncio.sleep(min(first_token_s, max(left_s, 0.0)))
        if left_s < first_token_s:
            self.num_too_late += 1
            self.outcomes.append(Outcome(arrived_at, clock.now(), None, None, tenant))
        else:
            came_after_s = clock.now() - arrived_at
            if pick.HasField("prefill"):
                await self._decode(worker_id, _Decode(pick.is_quiet), service_s - first_token_s)
            else:  # then no batch takes in more than it has slots
                await asyncio.sleep(service_s - first_token_s)
            self.outcomes.append(Outcome(arrived_at, clock.now(), came_after_s, None, tenant))
        self._running[worker_id] -= 1
        self._report(worker_id)

    async def _decode(self, worker_id: str, decode: _Decode, seconds: float) -> None:
        clock, left_s, began_at = self.router.clock, seconds, self.router.clock.now()
        self._decoding[worker_id].append(decode)
        self._arrange(worker_id)
        while left_s > 0:
            await decode.goes.wait()
            went_at = clock.now()
            try:
                async with asyncio.timeout(left_s):
                    await decode.stops.wait()
            except TimeoutError:
                break
            left_s -= clock.now() - went_at
        self._decoding[worker_id].remove(decode)
        self._arrange(worker_id)
        if (paused_s := clock.now() - began_at - seconds) > 1e-6:
            self.pauses_s.append(paused_s)

    def _arrange(self, worker_id: str) -> None:
        ranked = sorted(self._decoding[worker_id], key=lambda each: not each.is_quiet)
        for place, each in enumerate(ranked):
            each.let(go=place < self.slots)

    def _report(self, worker_id: str, *accepted: str) -> None:
        # The rate includes the whole time to the first token. One that never changes would count as
        # not measured again.
        tokens_per_s = self.num_prompt_tokens / self.first_token_s + 0.001 * (self._number % 2)
        self._workers[worker_id].load(
            *accepted,
            num_running=self._running[worker_id],
            num_blocks_total=100_000,
            num_blocks_free=100_000,
            prefill_tokens_per_s=tokens_per_s,
            decode_step_s=0.001,
        )
