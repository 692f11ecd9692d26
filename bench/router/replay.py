"""Replays one trace on virtual time against one fleet with one placement, and sums it up."""

import asyncio
from dataclasses import dataclass, field
from random import Random

from baton.system.clock import Clock
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError
from bench.router.policies import Fleet, Placement, make_placement
from bench.router.simulated_workers import DecodeWorker, Job, Machine, PrefillWorker
from bench.router.traces import Trace


@dataclass(frozen=True, slots=True)
class Replay:
    """One run to make: the fleet has `num_workers` of each role.

    `load` is the share of the fleet's prefill speed that the trace would take without caches. A
    client leaves whose first token is not there after `due_s`.
    """

    trace: Trace
    policy: str
    num_workers: int = 8
    load: float = 0.7
    seed: int = 1
    due_s: float | None = None

    @property
    def machine(self) -> Machine:
        """Workers of the speed at which the trace is this load."""
        per_s = self.trace.num_prompt_tokens / self.trace.duration_s
        return Machine(prefill_tokens_per_s=per_s / (self.load * self.num_workers))


@dataclass(slots=True)
class Outcome:
    """The requests of one run: times to first token of those that were served, in their order."""

    num_requests: int = 0
    num_shed: int = 0
    num_prompt_tokens: int = 0
    num_computed: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    # The prompt tokens of those that had their first token in time.
    num_in_time_tokens: int = 0

    @property
    def hit_ratio(self) -> float:
        """The share of prompt tokens that came from caches."""
        return 1 - sum(self.num_computed) / max(1, self.num_prompt_tokens)

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttft_s) / max(1, len(self.ttft_s))

    def ttft_quantile_s(self, share: float) -> float:
        ordered = sorted(self.ttft_s)
        return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0

    @property
    def imbalance(self) -> float:
        """The most prompt tokens that one worker computed, over their mean."""
        mean = sum(self.num_computed) / max(1, len(self.num_computed))
        return max(self.num_computed, default=0) / mean if mean else 1.0


def most_in_time_tokens(replay: Replay) -> float:
    """The prompt tokens that could have their first token in time if all workers were one, which
    knew beforehand what it would finish in time and refused the rest: a bound for every router."""
    assert replay.due_s is not None
    per_s = replay.num_workers * replay.machine.prefill_tokens_per_s
    taken = backlog = last_at = 0.0
    for arrival in replay.trace.arrivals:
        backlog = max(0.0, backlog - per_s * (arrival.at_s - last_at))
        last_at = arrival.at_s
        fitting = min(arrival.num_prompt_tokens, per_s * replay.due_s - backlog)
        taken += fitting
        backlog += fitting
    return taken


def run_replay(replay: Replay) -> Outcome:
    """Replay to the end of the last request; the same seed gives the same outcome."""
    clock = VirtualClock()
    return run_virtual(_replay(replay, clock), clock)


async def _replay(replay: Replay, clock: Clock) -> Outcome:
    machine, numbers = replay.machine, range(replay.num_workers)
    fleet = Fleet(
        [PrefillWorker(f"prefill-{n}", machine, clock) for n in numbers],
        [DecodeWorker(f"decode-{n}", machine, clock) for n in numbers],
    )
    placement = make_placement(replay.policy, fleet, clock, Random(replay.seed))
    outcome = Outcome()
    background = [asyncio.create_task(worker.run()) for worker in fleet.prefills]
    background += placement.background()
    async with asyncio.TaskGroup() as requests:
        started_at = clock.now()
        for number, arrival in enumerate(replay.trace.arrivals):
            await asyncio.sleep(max(0.0, started_at + arrival.at_s - clock.now()))
            job = Job(f"request-{number}", arrival)
            if replay.due_s is not None:
                job.due_at = clock.now() + replay.due_s
            requests.create_task(_request(job, placement, clock, outcome))
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    outcome.num_computed = [worker.num_computed for worker in fleet.prefills]
    return outcome


async def _request(job: Job, placement: Placement, clock: Clock, outcome: Outcome) -> None:
    arrived_at = clock.now()
    outcome.num_requests += 1
    try:
        prefill, decode = await placement.place(job)
    except BatonError:
        outcome.num_shed += 1
        return
    outcome.num_prompt_tokens += job.arrival.num_prompt_tokens
    prefill.submit(job)
    decode.submit(job)
    first_at = await decode.serve(job)
    if first_at is None:
        prefill.leave(job)
        return
    outcome.ttft_s.append(first_at - arrived_at)
    if job.due_at is None or first_at <= job.due_at:
        outcome.num_in_time_tokens += job.arrival.num_prompt_tokens
