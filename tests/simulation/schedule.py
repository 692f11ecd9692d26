"""One random schedule for a whole fleet, drawn from one seed, and the checks that follow it.

Clients that leave, read slowly and ask for several choices; worker crashes with a new life on the
same address, dead cores, broken connections of every kind, processes and cores that stand still and
come back, drains, a Redis that loses everything; frames of different streams overtake each other.
"""

import asyncio
import gc
import random
from collections import Counter
from dataclasses import dataclass, field

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Answer, Fleet, Worker, fleet_of

NUM_REQUESTS = 12
# Requests and faults come within so much virtual time.
SPAN_S = 2.0
# How a request may end besides its whole answer when every worker that could serve it is gone.
ALLOWED_ERRORS = frozenset(
    {"worker_lost", "handoff_failed", "draining", "unavailable", "no_worker", "no_room"}
)
FAULTS = ("crash", "core_death", "cut", "cut", "stop", "stop_core", "drain", "redis_loss")


@dataclass
class Report:
    """What came of one seed."""

    seed: int
    # By how they ended: "whole", "left", or an error's reason.
    endings: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    virtual_s: float = 0.0
    num_frames: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Wish:
    """One request of the schedule."""

    request_id: str
    at_s: float
    text: str
    max_tokens: int
    seed: int
    num_choices: int
    pause_s: float
    patience_s: float


def run_schedule(seed: int, model: ServedModel) -> Report:
    """Raises AssertionError, or whatever else went wrong, with the seed in a note."""
    clock = VirtualClock()
    # OpenTelemetry draws the ids of spans from the module's own generator.
    random.seed(seed)
    # The collector closes forgotten generators, at moments that depend on all that ran before.
    gc.disable()
    try:
        return run_virtual(_Schedule(seed, clock, model).run(), clock)
    except BaseException as error:
        error.add_note(f"reproduce with BATON_SIM_SEED={seed}")
        raise
    finally:
        gc.enable()


class _Schedule:
    def __init__(self, seed: int, clock: VirtualClock, model: ServedModel) -> None:
        self._rng = random.Random(seed)
        self._clock = clock
        self._model = model
        self._report = Report(seed)
        # Only one fault of a kind that takes a whole worker away at a time.
        self._worker_fault = asyncio.Lock()

    async def run(self) -> Report:
        rng, report = self._rng, self._report
        fleet = fleet_of(
            report.seed,
            self._clock,
            self._model,
            num_prefill=2,
            num_decode=rng.choice([2, 2, 3]),
            num_blocks=rng.choice([96, 160, 512]),
            max_delay_s=rng.choice([0.0, 0.002, 0.02]),
        )
        async with fleet as running:
            await self._run_all(running)
            await running.quiet()
            await self._check_bills(running)
        digest = running.network.digest
        report.virtual_s = self._clock.now()
        report.num_frames, report.digest = digest.num_events, digest.hexdigest()
        return report

    async def _run_all(self, fleet: Fleet) -> None:
        rng = self._rng
        prefixes = [f"shared prefix {n} " * rng.randint(1, 20) for n in range(3)]
        wishes = [self._wish(number, prefixes) for number in range(NUM_REQUESTS)]
        faults = [
            (rng.uniform(0, SPAN_S), rng.choice(FAULTS)) for _ in range(rng.choice([0, 1, 2, 3, 4]))
        ]
        async with asyncio.TaskGroup() as tasks:
            for wish in wishes:
                tasks.create_task(self._ask(fleet, wish))
            for at_s, kind in sorted(faults):
                tasks.create_task(self._strike(fleet, at_s, kind, random.Random(rng.random())))

    def _wish(self, number: int, prefixes: list[str]) -> Wish:
        rng = self._rng
        return Wish(
            request_id=f"r{number}",
            at_s=rng.uniform(0, SPAN_S),
            text=rng.choice(prefixes) + "x" * rng.randint(0, 150),
            max_tokens=rng.randint(1, 60),
            seed=rng.randint(0, 3),
            num_choices=rng.choice([1, 1, 1, 2]),
            pause_s=0.2 if rng.random() < 0.2 else 0.0,
            patience_s=rng.uniform(0, 0.5) if rng.random() < 0.3 else 600.0,
        )

    async def _ask(self, fleet: Fleet, wish: Wish) -> None:
        await asyncio.sleep(wish.at_s)
        pauses = random.Random(wish.request_id)
        answer = Answer(pause_s=lambda: pauses.uniform(0, wish.pause_s))
        fields = {"max_tokens": wish.max_tokens, "seed": wish.seed, "n": wish.num_choices}
        ending = "whole"
        try:
            async with asyncio.timeout(wish.patience_s):
                await fleet.ask(wish.text, answer, request_id=wish.request_id, **fields)
        except TimeoutError:
            ending = "left"
        except BatonError as error:
            if error.reason not in ALLOWED_ERRORS:
                raise
            ending = error.reason
        self._report.endings[ending] += 1
        if wish.request_id in fleet.tokenizer.prompts:
            self._check_text(fleet, wish, answer, is_whole=ending == "whole")

    def _check_text(self, fleet: Fleet, wish: Wish, answer: Answer, is_whole: bool) -> None:
        """The text is right as far as it goes, and whole when nothing went wrong."""
        for choice in range(wish.num_choices):
            right = fleet.expected(wish.request_id, wish.max_tokens, wish.seed, choice)
            text = answer.texts.get(choice, "")
            if is_whole:
                assert text == right, f"{wish.request_id}/{choice}: wrong text"
            assert right.startswith(text), f"{wish.request_id}/{choice}: wrong beginning"
        if is_whole:
            assert set(answer.finish_reasons.values()) == {"length"}
            assert answer.usage.num_output_tokens == wish.max_tokens * wish.num_choices
            self._report.num_tokens += answer.usage.num_output_tokens

    async def _strike(self, fleet: Fleet, at_s: float, kind: str, rng: random.Random) -> None:
        await asyncio.sleep(at_s)
        if kind == "redis_loss":
            await fleet.lose_redis_data()
        elif kind == "cut":
            if links := fleet.network.links():
                rng.choice(links).cut()
        else:
            async with self._worker_fault:
                await self._strike_worker(fleet, kind, rng)
        self._report.faults[kind] += 1

    async def _strike_worker(self, fleet: Fleet, kind: str, rng: random.Random) -> None:
        endpoint = rng.choice(sorted(fleet.workers))
        gone: Worker | None = None
        match kind:
            case "crash":
                gone = fleet.kill_process(endpoint)
            case "core_death":
                gone = fleet.kill(endpoint)
            case "drain":
                gone = await fleet.drain(endpoint, cap_s=rng.uniform(0, 1))
            case "stop":
                await fleet.stop(endpoint, rng.uniform(0.1, 6))
            case "stop_core":
                await fleet.stop_core(endpoint, rng.uniform(0.1, 6))
        if gone is not None:
            await asyncio.sleep(rng.uniform(0.2, 1))
            fleet.start_worker(gone.name, endpoint)

    async def _check_bills(self, fleet: Fleet) -> None:
        """Each request that was reserved is settled once, and nothing is held any more."""
        settled = Counter(record.request_id for record in fleet.quota.settled)
        assert set(settled.values()) <= {1}, f"settled more than once: {settled}"
        assert not fleet.gateway.leases._leases
        assert self._report.endings["whole"] <= len(settled)
