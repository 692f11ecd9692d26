"""A quiet tenant beside one with 20 times its load in a whole fleet, in which only steps take time.

It is the fleet of `python -m bench overload` without the machine: one prefill worker, two decode
workers, and a little more than they can do. The long form prints the figures of
docs/benchmarks/overload.md (`pytest -s`, half an hour).
"""

import asyncio
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import Overloaded
from bench.pressure.pace import Pace
from loadtest.reporting.latency import percentile
from tests.simulation import fleet as simulation
from tests.simulation.fleet import Fleet, running_fleet
from tests.simulation.test_fair_room import FirstToken

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
NUM_DECODE, STEP_S, TOKEN_S = 2, 0.05, 0.0005
QUIET_SHARE, LOUD_SHARE = 0.05, 1.0
# The batch slots of each decode worker, and the tokens of an answer.
SLOTS, NUM_TOKENS = (40, 100) if IS_LONG else (4, 20)
SECONDS, BEGIN_S = (300, 10) if IS_LONG else (16, 2)
SEEDS = (3, 4, 5, 6) if IS_LONG else (3,)
CHARS = 23


class SameToken(FakeRunner):
    """Computes nothing."""

    def run(self, batch: StepBatch) -> StepResult:
        return StepResult(np.full(len(batch.sample_rows), 500, np.int64))


class Outcome(NamedTuple):
    """Times to first token of the quiet tenant, and the answers served, of the capacity."""

    first_tokens_s: list[float]
    served: float

    @classmethod
    def of_all(cls, outcomes: list["Outcome"]) -> "Outcome":
        first_tokens_s = [each for outcome in outcomes for each in outcome.first_tokens_s]
        return cls(first_tokens_s, sum(each.served for each in outcomes) / len(outcomes))

    def percentile_s(self, percent: float) -> float:
        return percentile(self.first_tokens_s, percent) or 0.0


async def load(fleet: Fleet, shares: dict[str, float], *, is_one_line: bool) -> Outcome:
    """Send as much as these shares of the capacity; in one line all are of one tenant."""
    rng, clock, began = fleet.rng, fleet.clock, fleet.clock.now()
    capacity_per_s = NUM_DECODE * fleet.num_slots / (NUM_TOKENS * STEP_S)
    names = dict.fromkeys(shares, "all") if is_one_line else {each: each for each in shares}
    keys_of = {name: await fleet.new_key(name) for name in dict.fromkeys(names.values())}
    keys = {tenant: keys_of[name] for tenant, name in names.items()}
    times: list[float] = []
    ended: list[float] = []

    async def ask(tenant: str) -> None:
        answer, asked_at = FirstToken(clock), clock.now()
        text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(CHARS))
        fields: dict[str, Any] = {
            "max_tokens": rng.randint(NUM_TOKENS // 2, NUM_TOKENS * 3 // 2),
            "ignore_eos": True,
            "api_key": keys[tenant],
        }
        try:
            await fleet.ask(text, answer, **fields)
        except Overloaded:
            # More comes than can be served, in the end the line is too long: not for the quiet one.
            assert tenant == "loud" or is_one_line
            return
        ended.append(clock.now())
        if tenant == "quiet" and asked_at > began + BEGIN_S:
            times.append(answer.came_at - asked_at)

    async with asyncio.TaskGroup() as tasks:

        async def send(tenant: str, per_s: float) -> None:
            while clock.now() < began + SECONDS:
                await asyncio.sleep(rng.expovariate(per_s))
                tasks.create_task(ask(tenant))

        for tenant, share in shares.items():
            tasks.create_task(send(tenant, share * capacity_per_s))
    num_served = sum(BEGIN_S <= at - began < SECONDS for at in ended)
    return Outcome(times, num_served / (SECONDS - BEGIN_S) / capacity_per_s)


def test_the_first_token_of_a_quiet_tenant_waits_for_no_answer_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace(STEP_S, TOKEN_S, 0)
    monkeypatch.setattr(simulation, "FakeRunner", SameToken)
    monkeypatch.setattr(simulation, "poison_and_time", lambda worker, batch: pace.step_s(batch))

    def outcome(name: str, shares: dict[str, float], *, is_one_line: bool = False) -> Outcome:
        outcomes: list[Outcome] = []

        async def scenario(seed: int, clock: VirtualClock) -> None:
            folder = tmp_path / f"{name}-{seed}"
            folder.mkdir()
            sizes = {"num_prefill": 1, "num_decode": NUM_DECODE, "num_slots": SLOTS}
            async with running_fleet(seed, clock, folder, num_blocks=2048, **sizes) as fleet:
                outcomes.append(await load(fleet, shares, is_one_line=is_one_line))

        for seed in SEEDS:
            clock = VirtualClock()
            run_virtual(scenario(seed, clock), clock)
        result = Outcome.of_all(outcomes)
        p50, p90, p99 = map(result.percentile_s, (50, 90, 99))
        print(f"{name}: {len(result.first_tokens_s)} requests, {p50:.3f} {p90:.3f} {p99:.3f} s")
        print(f"served {result.served:.3f} of the capacity")
        return result

    beside = outcome("beside", {"quiet": QUIET_SHARE, "loud": LOUD_SHARE})
    # A step of each worker, and the prompts of others that are in the same one.
    assert len(beside.first_tokens_s) >= 2
    assert max(beside.first_tokens_s) <= 3 * STEP_S
    if IS_LONG:
        alone = outcome("alone", {"quiet": QUIET_SHARE})
        assert beside.percentile_s(99) <= 1.25 * alone.percentile_s(99)
        shares = {"quiet": QUIET_SHARE, "loud": LOUD_SHARE}
        one_line = outcome("one line", shares, is_one_line=True)
        assert beside.served >= 0.98 * one_line.served
