"""Workers that stand still and come back: streams move, and what they still say is dropped."""

from tests.chaos.conftest import Target
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Trials
from tests.e2e.conftest import wait_until

NUM_TOKENS = 160
# Until the gateway has given the worker up, on a busy machine.
MOVED_TIMEOUT_S = 60


def test_streams_leave_a_worker_that_stands_still(target: Target, trials: Trials) -> None:
    body = story(max_tokens=NUM_TOKENS, temperature=0.8, seed=5)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        target.wait_until_whole()
        stream = target.stream(body)
        stream.wait_for(target.rng.randint(1, NUM_TOKENS // 2))
        (name, *_) = target.busy("decode")
        faults = [target.fault(name, core=True)]
        if number % 2 == 0:
            faults.append(target.fault(name))
        for fault in faults:
            fault.stop().verify()
        try:
            answer = stream.join()
        finally:
            for fault in faults:
                fault.resume().verify()
        assert_same(answer, right)
        return answer.stall_s

    trials.run("SIGSTOP busy decode worker", 50, trial)


def test_an_idle_worker_that_stands_still_is_left_out(target: Target, trials: Trials) -> None:
    def ready() -> float:
        return target.stack.metric("router-1", "baton_router_ready_workers", role="decode")

    body = story(max_tokens=20)
    right = target.right_answer(body)

    def trial(number: int) -> None:
        target.wait_until_whole()
        fault = target.fault(f"decode-{number % 2 + 1}").stop()
        fault.verify()
        try:
            wait_until(lambda: ready() == 1, MOVED_TIMEOUT_S)
            assert_same(target.stream(body).join(), right)
        finally:
            fault.resume().verify()

    trials.run("SIGSTOP idle decode worker", 20, trial)
