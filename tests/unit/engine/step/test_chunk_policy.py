"""How the prefill share of a step follows what steps took."""

from dataclasses import dataclass

import pytest

from baton.engine.step.chunk_policy import (
    FIRST_CHUNK_TOKENS,
    LEAST_SHARE,
    LONE_FACTOR,
    MAX_MIXED_STEPS,
    MOST_SHARE,
    QUEUE_STREAMS,
    SHORT_STEPS,
    ChunkPolicy,
)


def _policy(max_step_s: float | None = 0.1, max_step_tokens: int = 4096) -> ChunkPolicy:
    return ChunkPolicy(max_step_tokens, max_step_s)


@dataclass
class _Machine:
    """Step times: decodes, prefill tokens, and what a step costs besides."""

    decode_s: float = 0.0
    token_s: float = 0.001
    fixed_s: float = 0.0

    def step_s(self, num_tokens: int, num_decodes: int) -> float:
        return self.fixed_s + num_tokens * self.token_s + (self.decode_s if num_decodes else 0.0)

    def run(self, policy: ChunkPolicy, num_decodes: int, num_steps: int = 60) -> list[float]:
        """The times of the last steps that had prefill."""
        mixed = []
        for _ in range(num_steps):
            num_tokens = policy.max_prefill_tokens(num_decodes)
            duration_s = self.step_s(num_tokens, num_decodes)
            policy.observe(duration_s, num_tokens, num_decodes)
            if num_tokens:
                mixed.append(duration_s)
        return mixed[-MAX_MIXED_STEPS:]


def test_a_first_chunk_is_moderate():
    assert _policy().max_prefill_tokens(0) == FIRST_CHUNK_TOKENS
    assert _policy(max_step_tokens=64).max_prefill_tokens(0) == 64


def test_a_step_with_decodes_ends_in_time():
    assert _Machine(decode_s=0.02).run(_policy(), 8)[-1] == pytest.approx(0.1, rel=0.1)


def test_slow_decodes_leave_prefill_a_share():
    expected_s = 0.09 * (1 + LEAST_SHARE)
    assert _Machine(decode_s=0.09).run(_policy(), 32)[-1] == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize(("decode_s", "share"), [(0.1, 0.5), (0.15, 1.0), (0.2, 1.5), (0.9, 1.5)])
def test_the_slower_large_batches_are_the_more_is_read_for_their_successors(
    decode_s: float, share: float
) -> None:
    assert LEAST_SHARE <= share <= MOST_SHARE
    took_s = _Machine(decode_s=decode_s).run(_policy(), 32)[-1]
    assert took_s == pytest.approx(decode_s * (1 + share), rel=0.05)


@pytest.mark.parametrize(("num_prompts", "share"), [(0, 0.7), (4, 0.7), (8, 1.0), (99, 1.5)])
def test_while_more_prompts_wait_than_streams_run_most_of_a_step_is_theirs(
    num_prompts: int, share: float
) -> None:
    policy = _policy()
    _Machine(decode_s=0.12).run(policy, 8)
    num_tokens = policy.allowed_tokens(8, num_prompts)
    assert num_tokens == pytest.approx(120 * share, rel=0.05)


@pytest.mark.parametrize(("num_prompts", "took_s"), [(0, 0.1), (1, 0.15), (2, 0.2), (8, 0.2)])
def test_a_step_may_take_twice_as_long_while_prompts_wait(num_prompts: int, took_s: float) -> None:
    assert QUEUE_STREAMS == 4
    policy, machine = _policy(), _Machine(decode_s=0.04)
    machine.run(policy, 8)
    num_tokens = policy.allowed_tokens(8, num_prompts)
    assert machine.step_s(num_tokens, 8) == pytest.approx(took_s, rel=0.05)


def test_a_queue_makes_no_step_longer_for_a_quiet_tenant():
    policy, machine = _policy(), _Machine(decode_s=0.04)
    machine.run(policy, 8)
    policy.shorten()
    assert machine.step_s(policy.allowed_tokens(8, 8), 8) == pytest.approx(0.1, rel=0.05)


def test_a_step_without_decodes_may_take_longer():
    assert _Machine().run(_policy(), 0)[-1] == pytest.approx(LONE_FACTOR * 0.1, rel=0.1)


def test_steps_are_short_for_a_while_after_a_request_of_a_quiet_tenant():
    policy = _policy()
    _Machine().run(policy, 0)
    policy.shorten()
    assert _Machine().run(policy, 0, SHORT_STEPS) == pytest.approx([0.1] * MAX_MIXED_STEPS, rel=0.1)
    assert _Machine().run(policy, 0)[-1] == pytest.approx(LONE_FACTOR * 0.1, rel=0.1)


def test_fixed_costs_do_not_keep_chunks_small():
    duration_s = _Machine(fixed_s=0.2).run(_policy(), 0)[-1]
    assert duration_s == pytest.approx(LONE_FACTOR * 0.1, rel=0.1)


def test_decodes_that_became_slower_do_not_starve_prefill():
    # Chunks come without a pause, so that no step would show what decodes alone take now.
    policy = _policy()
    _Machine(decode_s=0.02).run(policy, 8)
    slower = _Machine(decode_s=0.09)
    assert sum(slower.run(policy, 8)) / MAX_MIXED_STEPS == pytest.approx(0.135, rel=0.1)


def test_a_batch_that_grew_is_measured_before_prefill_goes_on():
    policy = _policy()
    _Machine(decode_s=0.02).run(policy, 2)
    policy.observe(0.02, 0, 2)
    policy.observe(0.1, 80, 2)
    assert policy.max_prefill_tokens(3) > 0
    assert policy.max_prefill_tokens(4) == 0
    policy.observe(0.05, 0, 4)
    assert policy.max_prefill_tokens(4) > 0


def test_decodes_run_alone_once_in_a_while():
    policy, machine = _policy(), _Machine(decode_s=0.02)
    machine.run(policy, 8)
    chunks = []
    for _ in range(2 * (MAX_MIXED_STEPS + 1)):
        chunks.append(policy.max_prefill_tokens(8))
        policy.observe(machine.step_s(chunks[-1], 8), chunks[-1], 8)
    assert chunks.count(0) == 2


def test_prefill_that_seems_free_fills_the_budget_and_no_more():
    assert _Machine(decode_s=0.05, token_s=0.0).run(_policy(), 8)[-1] == pytest.approx(0.05)


def test_a_fast_machine_uses_the_whole_token_budget():
    policy = _policy(max_step_tokens=512)
    policy.observe(0.0, 256, 0)
    policy.observe(0.01, 0, 3)
    assert policy.max_prefill_tokens(3) == 512


def test_a_machine_that_is_far_too_slow_still_gets_on():
    policy = _policy()
    policy.observe(60.0, 1, 0)
    assert policy.max_prefill_tokens(0) == 1


def test_without_a_limit_every_step_may_be_full():
    policy = _policy(max_step_s=None)
    policy.observe(60.0, 1, 0)
    assert policy.max_prefill_tokens(5) == 4096
