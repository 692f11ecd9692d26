"""Clients that leave in each phase of their request: everything they held comes back."""

import time

import pytest

from tests.chaos.conftest import Target
from tests.chaos.streams import Stream, story
from tests.chaos.trials import Trials
from tests.e2e.conftest import wait_until

MAX_FREE_P95_S = 0.25
LONG = "Tell me, in a few words, about the price of tea and the way to the station. " * 60


def in_tokenizing(target: Target) -> Stream:
    return target.stream(story(max_tokens=50, question=LONG * 8))


def in_queue_or_prefill(target: Target) -> Stream:
    before = target.stack.metric("gateway", "baton_gateway_open_requests")
    stream = target.stream(story(max_tokens=50, question=f"{target.rng.random()} {LONG}"))
    wait_until(
        lambda: (
            stream.is_over or target.stack.metric("gateway", "baton_gateway_open_requests") > before
        )
    )
    return stream


def in_prefill_or_handoff(target: Target) -> Stream:
    stream = target.stream(story(max_tokens=50, question=f"{target.rng.random()} {LONG}"))
    while not stream.is_over and not target.busy("prefill"):
        pass
    return stream


def in_decode(target: Target) -> Stream:
    stream = target.stream(story(max_tokens=200))
    stream.wait_for(target.rng.randint(1, 100))
    return stream


PHASES = {
    "at once": in_tokenizing,
    "in queue or prefill": in_queue_or_prefill,
    "in prefill or handoff": in_prefill_or_handoff,
    "in decode": in_decode,
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves_gives_everything_back(
    phase: str, target: Target, trials: Trials
) -> None:
    def num_cancelled() -> float:
        return target.stack.metric("gateway", "baton_gateway_cancel_seconds_count")

    def trial(number: int) -> float:
        PHASES[phase](target).leave()
        left_s = time.monotonic()
        wait_until(lambda: not any(target.used_blocks().values()))
        return time.monotonic() - left_s

    before = num_cancelled()
    trials.run(f"client leaves {phase}", 200, trial, max_p95_s=MAX_FREE_P95_S)
    target.wait_until_quiet()
    num_trials = trials.kinds[f"client leaves {phase}"].num_trials
    # Of those that leave at once, a few are gone before their request is one.
    least = num_trials // 2 if phase == "at once" else num_trials
    assert least <= num_cancelled() - before <= num_trials
