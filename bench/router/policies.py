"""Ways to place a request: the router itself, three simple rules, and one that knows everything.

All but the router read the workers' true state at the moment of the request.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Protocol, TypeVar

from baton.system.clock import Clock
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from bench.router.simulated_workers import (
    HEARTBEAT_S,
    MODEL_FP,
    PACE_S,
    DecodeWorker,
    Job,
    PrefillWorker,
    Worker,
)
from bench.router.traces import BLOCK_SIZE
from services.router.fleet.health import TICK_S
from services.router.router_core import RouterCore
from services.router.settings import Settings

MAX_MODEL_LEN = 1 << 20


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated workers of one run."""

    prefills: Sequence[PrefillWorker]
    decodes: Sequence[DecodeWorker]

    @property
    def workers(self) -> Sequence[Worker]:
        return [*self.prefills, *self.decodes]


class Placement(Protocol):
    """Chooses the workers of a request; raises BatonError to refuse it."""

    async def place(self, job: Job) -> tuple[PrefillWorker, DecodeWorker]: ...
    def background(self) -> Sequence["asyncio.Task[None]"]: ...


class RoutedPlacement:
    """The real router: it knows the workers by their reports alone."""

    def __init__(self, fleet: Fleet, clock: Clock, random: Random) -> None:
        self.core = RouterCore(Settings(), clock, random)
        self._fleet = fleet
        self._by_name = {worker.name: worker for worker in fleet.workers}
        self._clock = clock

    def background(self) -> Sequence["asyncio.Task[None]"]:
        """Register all workers, and return the tasks that report for them from then on."""
        reporters = [_Reporter(self.core, worker) for worker in self._fleet.workers]
        loops = [reporter.run() for reporter in reporters]
        return [asyncio.create_task(each) for each in (*loops, self._check_health())]

    async def place(self, job: Job) -> tuple[PrefillWorker, DecodeWorker]:
        arrival = job.arrival
        left_s = None if job.due_at is None else job.due_at - self._clock.now()
        response = await self.core.pick(
            router_pb2.PickRequest(
                request_id=job.request_id,
                model_fp=MODEL_FP,
                block_hashes=b"".join(arrival.hashes),
                num_prompt_tokens=arrival.num_prompt_tokens,
                expected_output_tokens=arrival.num_output_tokens,
                num_choices=1,
            ),
            left_s,
        )
        prefill = self._by_name[response.prefill.worker_id]
        decode = self._by_name[response.decode.worker_id]
        assert isinstance(prefill, PrefillWorker)
        assert isinstance(decode, DecodeWorker)
        return prefill, decode

    async def _check_health(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.core.check_health(TICK_S)


class _Reporter:
    """Reports for one worker: what changed at most every PACE_S, its load every HEARTBEAT_S."""

    def __init__(self, core: RouterCore, worker: Worker) -> None:
        self._core = core
        self._worker = worker
        self._seq = 0
        self._send(register=self._registration())
        self._send(snapshot=worker_pb2.KvSnapshot())
        self._send(load=worker.load())

    async def run(self) -> None:
        worker = self._worker
        while True:
            worker.changed.clear()
            try:
                async with asyncio.timeout(PACE_S if worker.is_busy else HEARTBEAT_S):
                    await worker.changed.wait()
                # What changes in the same turn of the worker travels in one report.
                await asyncio.sleep(PACE_S / 10)
            except TimeoutError:
                pass
            if events := list(self._kv_events()):
                self._send(kv_events=worker_pb2.KvEvents(events=events))
            load = worker.load()
            load.accepted_request_ids.extend(worker.accepted)
            worker.accepted.clear()
            self._send(load=load)

    def _kv_events(self) -> Iterator[worker_pb2.KvEvent]:
        removed, stored = self._worker.cache.take_events()
        if removed:
            yield worker_pb2.KvEvent(removed=worker_pb2.KvRemoved(hashes=removed))
        for chain in stored:
            yield worker_pb2.KvEvent(stored=worker_pb2.KvStored(hashes=chain.hashes))

    def _registration(self) -> worker_pb2.Register:
        worker, machine = self._worker, self._worker.machine
        return worker_pb2.Register(
            protocol=PROTOCOL_VERSION,
            worker_id=worker.name,
            boot_epoch=1,
            role=worker.role,
            model_fp=MODEL_FP,
            model_name="replayed",
            kv_spec_digest="one",
            block_size=BLOCK_SIZE,
            block_bytes=machine.block_bytes,
            num_blocks=machine.num_blocks,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=machine.max_num_seqs,
        )

    def _send(
        self,
        register: worker_pb2.Register | None = None,
        snapshot: worker_pb2.KvSnapshot | None = None,
        kv_events: worker_pb2.KvEvents | None = None,
        load: worker_pb2.Load | None = None,
    ) -> None:
        self._seq += 1
        report = worker_pb2.Report(
            seq=self._seq, register=register, snapshot=snapshot, kv_events=kv_events, load=load
        )
        self._core.apply_report(f"{self._worker.name}:1", report)


class RulePlacement:
    """A rule for the prefill worker; the decode worker is the one with the fewest sequences.

    Chance breaks ties.
    """

    def __init__(self, fleet: Fleet, rule: "_Rule", random: Random) -> None:
        self._fleet = fleet
        self._rule = rule
        self._random = random

    def background(self) -> Sequence["asyncio.Task[None]"]:
        return []

    async def place(self, job: Job) -> tuple[PrefillWorker, DecodeWorker]:
        prefills = _shuffled(self._fleet.prefills, self._random)
        decodes = _shuffled(self._fleet.decodes, self._random)
        prefill = min(prefills, key=lambda each: self._rule(job, each))
        return prefill, min(decodes, key=lambda each: each.num_sequences)


class PerfectPlacement:
    """The router's formula (decision 0018) with the true state of all workers at this moment.

    It also knows the blocks that a worker will have cached when the prompts in its line are done.
    """

    def __init__(self, fleet: Fleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random

    def background(self) -> Sequence["asyncio.Task[None]"]:
        return []

    async def place(self, job: Job) -> tuple[PrefillWorker, DecodeWorker]:
        fleet, random = self._fleet, self._random
        prefill = min(_shuffled(fleet.prefills, random), key=lambda each: _prefill_s(job, each))
        return prefill, min(_shuffled(fleet.decodes, random), key=lambda each: _decode_s(job, each))


def _prefill_s(job: Job, worker: PrefillWorker) -> float:
    hashes, num_tokens = job.arrival.hashes, job.arrival.num_prompt_tokens
    coming = [_num_common(hashes, other.arrival.hashes) for other in worker.jobs]
    depth = max([worker.cache.match(hashes), *coming])
    missing = max(1, num_tokens - depth * BLOCK_SIZE)
    return (worker.queued_tokens + missing) / worker.machine.prefill_tokens_per_s


def _decode_s(job: Job, worker: DecodeWorker) -> float:
    machine, arrival = worker.machine, job.arrival
    missing = len(arrival.hashes) - worker.cache.match(arrival.hashes)
    sent_s = missing * machine.block_bytes / machine.handoff_bytes_per_s
    longer_s = machine.idle_step_s * (worker.num_sequences + 1) / machine.batch_doubling
    return sent_s + longer_s * arrival.num_output_tokens


def _num_common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in equal)


# The lowest value wins.
_Rule = Callable[[Job, PrefillWorker], float]
T = TypeVar("T")


def _shuffled(items: Sequence[T], random: Random) -> list[T]:
    return random.sample(items, len(items))


def _turn(job: Job, worker: PrefillWorker) -> float:
    return worker.num_submitted


def _queue(job: Job, worker: PrefillWorker) -> float:
    return worker.queued_tokens


def _prefix(job: Job, worker: PrefillWorker) -> float:
    return -worker.cache.match(job.arrival.hashes)


_RULES: dict[str, _Rule] = {"least queue": _queue, "longest prefix": _prefix, "round robin": _turn}
POLICIES = ("baton", "perfect knowledge", "least queue", "longest prefix", "round robin")


def make_placement(name: str, fleet: Fleet, clock: Clock, random: Random) -> Placement:
    """Return the placement of this name in POLICIES."""
    if name == "baton":
        return RoutedPlacement(fleet, clock, random)
    if name == "perfect knowledge":
        return PerfectPlacement(fleet, random)
    return RulePlacement(fleet, _RULES[name], random)
