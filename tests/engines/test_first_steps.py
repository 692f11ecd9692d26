"""The first steps of a fresh core with vLLM: a hang in one is found as soon as in any other."""

import os
from collections.abc import Callable, Iterator

import pytest

from baton.engine.protocol.messages import Probe
from tests.engines.conftest import start_core
from tests.engines.driven_core import DrivenCore

PROMPT = list(range(700, 845))
GREEDY = {"max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def fresh() -> Iterator[DrivenCore]:
    core = start_core("vllm")
    yield core
    core.close()


def test_the_first_step_of_each_kind_has_an_expected_time(fresh: DrivenCore) -> None:
    expected: dict[str, set[float | None]] = {}

    def run(name: str, is_over: Callable[[], bool]) -> None:
        times = expected[name] = set()

        def look() -> bool:
            if fresh.progress.step:
                times.add(fresh.progress.expected_s)
            return is_over()

        fresh.until(look)

    fresh.send(Probe())
    run("probe", lambda: fresh.progress.step > 0)
    held = fresh.add(PROMPT, kind="prefill", **GREEDY)
    run("prefill", lambda: held in fresh.tokens)
    seq_id = fresh.add(PROMPT, kind="remote", cache_key=os.urandom(32), **GREEDY)
    run("room", lambda: seq_id in fresh.admitted)
    fresh.bind(seq_id)
    fresh.hand_over(held, seq_id, fresh.tokens[held][0])
    run("decode", lambda: seq_id in fresh.finished)
    sampled = fresh.add(PROMPT, **GREEDY, temperature=0.9, num_logprobs=2)
    run("sampling", lambda: sampled in fresh.finished)
    assert all(times and None not in times for times in expected.values()), expected
