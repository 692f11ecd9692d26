"""Gateway, quota and Redis, killed at every step of a request's bill, while a hundred clients spend
the last tokens of a key with a hard budget."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.quota_crashes import ALL_STEPS, VICTIMS, QuotaStack, Round, quota_stack
from tests.chaos.trials import IS_LONG, NUM_EACH, Trials

NUM_LONG = 200
# A round takes two seconds.
NUM_ROUNDS = 1 if NUM_EACH == 1 else 20 * NUM_EACH
FIRST_SEED = int(os.environ.get("BATON_CHAOS_SEED", "1"))


@pytest.fixture(scope="module")
def stack() -> Iterator[QuotaStack]:
    with TemporaryDirectory(prefix="baton-") as name, quota_stack(Path(name)) as running:
        yield running


@pytest.mark.timeout(60 + 30 * max(NUM_ROUNDS, NUM_LONG if IS_LONG else 0))
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_crash_overspends_nothing_holds_nothing_and_bills_once(
    victim: str, stack: QuotaStack, bare_trials: Trials
) -> None:
    """Each request is billed once, at what its client was given; no key is lost."""
    first_step = VICTIMS.index(victim)

    def trial(number: int) -> float:
        step = ALL_STEPS[(first_step + number) % len(ALL_STEPS)]
        return Round(stack, victim, step, FIRST_SEED + number).run()

    bare_trials.run(f"kill -9 {victim}, a bill", NUM_LONG, trial, num_each=NUM_ROUNDS)
