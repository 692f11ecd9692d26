"""How the prefill share of a step follows what steps took."""

import pytest

from baton.engine.chunk_policy import FIRST_CHUNK_TOKENS, LONE_FACTOR, ChunkPolicy

TOKEN_S = 0.001


def _policy(max_step_s: float | None = 0.1, max_step_tokens: int = 4096) -> ChunkPolicy:
    return ChunkPolicy(max_step_tokens, max_step_s)


def _settle(policy: ChunkPolicy, decode_s: float, num_decodes: int, fixed_s: float = 0.0) -> float:
    """Run steps of a machine with these times; returns how long the last one took."""
    policy.observe(decode_s, 0, num_decodes or 1)
    duration_s = 0.0
    for _ in range(40):
        num_tokens = policy.max_prefill_tokens(num_decodes)
        duration_s = fixed_s + num_tokens * TOKEN_S + (decode_s if num_decodes else 0.0)
        policy.observe(duration_s, num_tokens, num_decodes)
    return duration_s


def test_a_first_chunk_is_moderate():
    assert _policy().max_prefill_tokens(0) == FIRST_CHUNK_TOKENS
    assert _policy(max_step_tokens=64).max_prefill_tokens(0) == 64


def test_a_step_with_decodes_ends_in_time():
    assert _settle(_policy(), decode_s=0.02, num_decodes=8) == pytest.approx(0.1, rel=0.1)


def test_slow_decodes_leave_prefill_half_of_the_step():
    assert _settle(_policy(), decode_s=0.09, num_decodes=32) == pytest.approx(0.18, rel=0.1)


def test_a_step_without_decodes_may_take_longer():
    duration_s = _settle(_policy(), decode_s=0.02, num_decodes=0)
    assert duration_s == pytest.approx(LONE_FACTOR * 0.1, rel=0.1)


def test_fixed_costs_do_not_keep_chunks_small():
    duration_s = _settle(_policy(), decode_s=0.001, num_decodes=0, fixed_s=0.2)
    assert duration_s == pytest.approx(LONE_FACTOR * 0.1, rel=0.1)


def test_a_fast_machine_uses_the_whole_token_budget():
    policy = _policy(max_step_tokens=512)
    policy.observe(0.0, 256, 0)
    assert policy.max_prefill_tokens(3) == 512


def test_a_machine_that_is_far_too_slow_still_gets_on():
    policy = _policy()
    policy.observe(60.0, 1, 0)
    assert policy.max_prefill_tokens(0) == 1


def test_without_a_limit_every_step_may_be_full():
    policy = _policy(max_step_s=None)
    policy.observe(60.0, 1, 0)
    assert policy.max_prefill_tokens(5) == 4096
