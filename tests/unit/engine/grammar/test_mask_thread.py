"""The thread that works for grammar states: cheapest first, and never dead without a word."""

import threading

import pytest

from baton.engine.grammar.mask_thread import MaskThread
from baton.engine.grammar.state import GrammarState


def state(spent_s: float = 0.0) -> GrammarState:
    made = GrammarState(1, lambda: 0.0)
    made.spent_s = spent_s
    return made


def test_the_cheapest_state_comes_first():
    thread, started, go = MaskThread(), threading.Event(), threading.Event()
    order: list[str] = []

    def hold() -> None:
        started.set()
        go.wait()

    states = [state(), state(9.0), state(0.1), state(0.1)]
    thread.submit(states[0], hold)
    started.wait()
    for one, name in zip(states[1:], ("costly", "first", "second"), strict=True):
        thread.submit(one, lambda name=name: order.append(name))  # type: ignore[misc]
    go.set()
    for one in states:
        one.work.result(timeout=60)
    assert order == ["first", "second", "costly"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_goes_wrong_in_the_thread_reaches_the_engine():
    thread, broken = MaskThread(), state()

    def fail() -> None:
        raise AssertionError("a bug")

    thread.submit(broken, fail)
    with pytest.raises(AssertionError, match="a bug"):
        broken.work.result(timeout=60)
    thread._thread.join(timeout=60)
