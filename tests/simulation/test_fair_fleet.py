"""A quiet tenant beside one with 20 times its load in a whole fleet, in which only steps take time.

It is the fleet of `python -m bench overload` without the machine: one prefill worker, two decode
workers, and as much as they can do. The long form prints the figures of docs/benchmarks/overload.md
(`pytest -s`).
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
from bench.pressure.pace import Pace
from loadtest.reporting.latency import percentile
from tests.simulation import fleet as simulation
from tests.simulation.fleet import Fleet, running_fleet
from tests.simulation.test_fair_room import FirstToken

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
NUM_DECODE, STEP_S, TOKEN_S = 2, 0.05, 0.0005
QUIET_SHARE, LOUD_SHARE = 0.05, 1.0
# The batch slots of each decode worker, and the tokens of an answer.
SHAPES = [(4, 20), (40, 100)] if IS_LONG else [(4, 20)]
SECONDS, BEGIN_S = (300, 10) if IS_LONG else (10, 2)
CHARS = 23


class SameToken(FakeRunner):
    """Computes nothing."""

    def run(self, batch: StepBatch) -> StepResult:
        return StepResult(np.full(len(batch.sample_rows), 500, np.int64))


class Outcome(NamedTuple):
    """Times to first token of the quiet tenant, and the answers served, of the capacity."""

    first_tokens_s: list[float]
    served: float


async def load(fleet: Fleet, shares: dict[str, float], num_tokens: int) -> Outcome:
    """Send as much as these shares of the capacity."""
    rng, clock, began = fleet.rng, fleet.clock, fleet.clock.now()
    capacity_per_s = NUM_DECODE * fleet.num_slots / (num_tokens * STEP_S)
    keys = {tenant: await fleet.new_key(tenant) for tenant in shares}
    times: list[float] = []
    ended: list[float] = []

    async def ask(tenant: str) -> None:
        answer, asked_at = FirstToken(clock), clock.now()
        text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(CHARS))
        fields: dict[str, Any] = {
            "max_tokens": rng.randint(num_tokens // 2, num_tokens * 3 // 2),
            "ignore_eos": True,
            "api_key": keys[tenant],
        }
        await fleet.ask(text, answer, **fields)
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


@pytest.mark.parametrize(("slots", "num_tokens"), SHAPES)
def test_the_first_token_of_a_quiet_tenant_waits_for_no_answer_to_end(
    slots: int, num_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace(STEP_S, TOKEN_S, 0)
    monkeypatch.setattr(simulation, "FakeRunner", SameToken)
    monkeypatch.setattr(simulation, "poison_and_time", lambda worker, batch: pace.step_s(batch))

    def outcome(name: str, shares: dict[str, float]) -> Outcome:
        clock = VirtualClock()
        outcomes: list[Outcome] = []

        async def scenario() -> None:
            folder = tmp_path / name
            folder.mkdir()
            sizes = {"num_prefill": 1, "num_decode": NUM_DECODE, "num_slots": slots}
            async with running_fleet(3, clock, folder, num_blocks=2048, **sizes) as fleet:
                outcomes.append(await load(fleet, shares, num_tokens))

        run_virtual(scenario(), clock)
        return outcomes[0]

    beside = outcome("beside", {"quiet": QUIET_SHARE, "loud": LOUD_SHARE})
    # A step of each worker, and the prompts of others that are in the same one.
    assert len(beside.first_tokens_s) >= 2
    assert max(beside.first_tokens_s) <= 3 * STEP_S
    if IS_LONG:
        alone = outcome("alone", {"quiet": QUIET_SHARE})
        for name, each in (("alone", alone), ("beside", beside)):
            p50, p90, p99 = (percentile(each.first_tokens_s, q) or 0.0 for q in (50, 90, 99))
            print(f"{name}: {len(each.first_tokens_s)} requests, {p50:.3f} {p90:.3f} {p99:.3f} s")
        print(f"served {beside.served:.3f} of the capacity")
        allowed = 1.25 * (percentile(alone.first_tokens_s, 99) or 0.0)
        assert (percentile(beside.first_tokens_s, 99) or 0.0) <= allowed
        assert beside.served >= 0.98
