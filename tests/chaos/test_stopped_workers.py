"""Workers that stand still and come back: streams move, and what they still say is dropped."""

import time

from tests.chaos.conftest import NUM_DECODE, Target
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Missed, Trials
from tests.e2e.conftest import wait_until

# Long enough that hardly a stream ends before its worker stands still or is awake again.
NUM_TOKENS = 1500
MAX_FIRST_TOKENS = 100
# Until a worker is given up: with streams, and without.
MAX_BUSY_S, MAX_IDLE_S = 3.0, 8.0
# On a busy machine.
FOUND_TIMEOUT_S = 60


def test_streams_leave_a_worker_that_stands_still(target: Target, trials: Trials) -> None:
    """It wakes while they run elsewhere: its tokens come too late."""
    body = story(max_tokens=NUM_TOKENS, temperature=0.8, seed=5)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        target.wait_until_able()
        # The last one that woke has heard that its streams are gone.
        target.wait_until_quiet()
        before = target.num_moves()
        stream = target.stream(body)
        stream.wait_for(target.rng.randint(1, MAX_FIRST_TOKENS))
        name = target.busiest("decode")
        faults = [target.fault(name, core=True)]
        if number % 2 == 0:
            faults.append(target.fault(name))
        began_s = time.monotonic()
        for fault in faults:
            fault.stop().verify()
        try:
            wait_until(lambda: target.num_moves() > before or stream.is_over, FOUND_TIMEOUT_S)
            found_s = time.monotonic() - began_s
            has_moved = target.num_moves() > before
        finally:
            for fault in faults:
                fault.resume().verify()
        assert_same(stream.join(), right)
        if not has_moved:
            raise Missed  # it ended before its worker stood still
        return found_s

    trials.run("SIGSTOP busy decode worker", 20, trial, max_s=MAX_BUSY_S)


def test_an_idle_worker_that_stands_still_is_left_out(target: Target, trials: Trials) -> None:
    body = story(max_tokens=20)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        target.wait_until_whole()
        fault = target.fault(f"decode-{number % NUM_DECODE + 1}")
        began_s = time.monotonic()
        fault.stop().verify()
        try:
            wait_until(lambda: target.num_ready("decode") == NUM_DECODE - 1, FOUND_TIMEOUT_S)
            found_s = time.monotonic() - began_s
            assert_same(target.stream(body).join(), right)
        finally:
            fault.resume().verify()
        return found_s

    trials.run("SIGSTOP idle decode worker", 20, trial, max_s=MAX_IDLE_S)
