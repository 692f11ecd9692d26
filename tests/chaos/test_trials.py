"""How trials are counted: no stack, no fault."""

import pytest

from tests.chaos import trials as counting
from tests.chaos.trials import MAX_TRIES, Missed, Trials


@pytest.fixture(autouse=True)
def two_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "IS_LONG", False)
    monkeypatch.setattr(counting, "NUM_EACH", 2)


def test_one_trial_that_takes_too_long_fails_the_run() -> None:
    with pytest.raises(AssertionError, match=r"trial 1: it took 11\.00 s"):
        Trials().run("kill", 200, lambda number: 11.0 * number)


def test_a_fault_that_struck_nobody_is_made_again_and_does_not_count() -> None:
    trials, made = Trials(), []

    def trial(number: int) -> float:
        made.append(number)
        if number < 2:
            raise Missed
        return 0.1

    trials.run("kill", 200, trial)
    assert made == [0, 1, 2, 3]
    assert (trials.kinds["kill"].num_trials, trials.kinds["kill"].num_missed) == (2, 2)


def test_faults_that_strike_nobody_again_and_again_fail_the_run() -> None:
    def trial(number: int) -> float:
        raise Missed

    with pytest.raises(AssertionError, match=f"{2 * MAX_TRIES} faults struck nobody"):
        Trials().run("kill", 200, trial)
