"""The replay of traffic on virtual time, and what it shows of the router."""

from random import Random

import pytest

from bench.router.replay import Outcome, Replay, run_replay
from bench.router.router_bench import burst_record, replay_record
from bench.router.router_report import render
from bench.router.traces import Trace, synthetic_bursts, synthetic_chats, trace

SECONDS = 200.0


def chats(num_common: int = 1) -> Trace:
    return trace("chats", synthetic_chats(Random(1), SECONDS, num_common=num_common), SECONDS)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    names = ("baton", "perfect knowledge", "least queue", "longest prefix")
    return {name: run_replay(Replay(chats(), name)) for name in names}


def test_the_same_seed_gives_the_same_outcome() -> None:
    once, again = (
        run_replay(Replay(trace("b", synthetic_bursts(Random(2), 20.0), 20.0), "baton"))
        for _ in range(2)
    )
    assert once == again
    assert once.num_requests == len(once.ttft_s) > 40


def test_the_router_hits_the_caches_nearly_as_often_as_with_perfect_knowledge(outcomes) -> None:
    baton, best = outcomes["baton"], outcomes["perfect knowledge"]
    assert best.hit_ratio > 0.1
    assert baton.hit_ratio >= 0.95 * best.hit_ratio


def test_the_router_is_nearly_as_fast_as_with_perfect_knowledge(outcomes) -> None:
    baton, best = outcomes["baton"], outcomes["perfect knowledge"]
    assert baton.mean_ttft_s <= 1.05 * best.mean_ttft_s
    assert baton.mean_ttft_s < outcomes["least queue"].mean_ttft_s
    assert baton.num_shed == 0


def test_the_longest_prefix_alone_sends_a_common_prompt_to_one_worker(outcomes) -> None:
    assert outcomes["longest prefix"].imbalance > 1.8


def test_common_system_prompts_leave_the_load_balanced(outcomes) -> None:
    assert outcomes["baton"].imbalance <= 1.8
    assert run_replay(Replay(chats(num_common=16), "baton")).imbalance <= 1.8


def test_every_prompt_is_computed_once_when_nothing_is_shared() -> None:
    unrelated = trace("bursts", synthetic_bursts(Random(3), 20.0), 20.0)
    outcome = run_replay(Replay(unrelated, "round robin", num_workers=2))
    assert sum(outcome.num_computed) == unrelated.num_prompt_tokens
    assert outcome.hit_ratio == 0


def test_the_table_compares_with_the_best_placement() -> None:
    short = trace("bursts", synthetic_bursts(Random(4), 10.0), 10.0)
    policies = ("baton", "perfect knowledge")
    text = render([replay_record(Replay(short, policy, num_workers=2)) for policy in policies])
    assert "### Bursts" in text
    assert "| **baton** | 0.0% |" in text
    assert text.count("| - | 1.000 |") >= 1


def test_bursts_beyond_the_capacity_are_shed_and_not_answered_too_late() -> None:
    bursts = trace("bursts", synthetic_bursts(Random(3), 40.0), 40.0)
    names = ("baton", "least queue")
    ours, plain = (
        burst_record(Replay(bursts, name, num_workers=4, load=2.5, due_s=10.0)) for name in names
    )
    assert ours["num_left"] <= 0.02 * ours["num_requests"]
    assert ours["goodput"] >= 0.7
    assert ours["goodput"] >= 1.2 * plain["goodput"]
