"""What vLLM's scheduler counts reaches the worker's front, each event once."""

import os

import pytest

from baton.engine.protocol.vllm_stats import VllmStats
from tests.engines.driven_core import DrivenCore

pytestmark = pytest.mark.parametrize("running", ["vllm"], indirect=True)

PROMPT = list(range(300, 430))  # four full blocks and a part
GREEDY = {"max_tokens": 4, "ignore_eos": True}


def total(core: DrivenCore, name: str) -> int:
    return sum(getattr(each, name) for each in core.vllm)


def test_prompt_tokens_are_told_by_where_they_came_from(core: DrivenCore) -> None:
    core.vllm.clear()
    keys = {"cache_key": os.urandom(32)}, {"cache_key": os.urandom(32)}
    held, first_token = core.prefill(PROMPT, **GREEDY, **keys[0])
    num_cached = len(PROMPT) // core.block_size * core.block_size
    core.release(held)
    core.answer(PROMPT, **GREEDY, **keys[0])
    held, first_token = core.prefill(PROMPT, **GREEDY, **keys[0])
    remote = core.add(PROMPT, kind="remote", **GREEDY, **keys[1])
    core.bind(remote)
    assert core.vllm[-1].num_kv_fetches["in_progress"] == core.vllm[-1].num_deferred == 1
    core.hand_over(held, remote, first_token)
    core.until(lambda: remote in core.finished)
    core.settle()
    assert total(core, "num_handed_over_tokens") == len(PROMPT)
    assert total(core, "num_cached_tokens") == 2 * num_cached
    assert total(core, "num_computed_tokens") == 3 * len(PROMPT) - 2 * num_cached
    assert total(core, "num_external_hits") == len(PROMPT)
    computed = [number for each in core.vllm for number in each.computed_prompts]
    assert computed == [len(PROMPT), 2, 2, 0]
    assert [number for each in core.vllm for number in each.preemptions] == [0] * 4


def test_nothing_waits_and_nothing_is_on_its_way_at_rest(core: DrivenCore) -> None:
    core.answer(PROMPT, **GREEDY)
    core.settle()
    last: VllmStats = core.vllm[-1]
    assert last.num_waiting == last.num_deferred == sum(last.num_kv_fetches.values()) == 0
    assert last.running_adapters == last.waiting_adapters == []
