"""How the prefill share of a step follows what steps took and read."""

from collections import deque
from dataclasses import dataclass
from statistics import median, quantiles

import pytest

from baton.engine.step.chunk_policy import (
    FIRST_CHUNK_TOKENS,
    LEAST_SHARE,
    LONE_FACTOR,
    LONGEST_FACTOR,
    MAX_MIXED_STEPS,
    MOST_SHARE,
    RAMP_STEPS,
    READ_FACTOR,
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
        """The times of the last steps that had prefill, of prompts that lengthen none."""
        mixed = []
        for _ in range(num_steps):
            num_tokens = policy.max_prefill_tokens(num_decodes, may_lengthen=False)
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


def _read_beside(
    policy: ChunkPolicy, machine: _Machine, num_decodes: int, num_tokens: int, reading_s: float
) -> None:
    """Decodes alone, and then so many prompt tokens beside them in each step."""
    policy.observe(machine.step_s(0, num_decodes), 0, num_decodes)
    while reading_s > 1e-6:
        step_s = machine.step_s(num_tokens, num_decodes)
        policy.observe(step_s, num_tokens, num_decodes)
        reading_s -= step_s


@pytest.mark.parametrize(("reading_s", "took_s"), [(0.0, 0.1), (0.5, 0.15), (1.0, 0.2), (9.0, 0.2)])
def test_a_step_may_take_twice_as_long_while_prompts_are_read_in_every_step(
    reading_s: float, took_s: float
) -> None:
    assert RAMP_STEPS == 10
    policy, machine = _policy(), _Machine(decode_s=0.04)
    _Machine().run(policy, 0)
    _read_beside(policy, machine, 8, 10, reading_s)
    assert machine.step_s(policy.allowed_tokens(8), 8) == pytest.approx(took_s, rel=0.05)
    assert machine.step_s(policy.allowed_tokens(8, False), 8) == pytest.approx(0.1, rel=0.05)
    policy.observe(0.04, 0, 8)
    assert machine.step_s(policy.allowed_tokens(8), 8) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(("num_tokens", "allowed"), [(20, 120), (200, 400), (2000, 720)])
def test_twice_as_much_is_read_for_each_decode_as_in_the_latest_steps(
    num_tokens: int, allowed: int
) -> None:
    assert (READ_FACTOR, LONGEST_FACTOR) == (2, 8)
    policy, machine = _policy(max_step_tokens=9999), _Machine(decode_s=0.08)
    _Machine().run(policy, 0)
    _read_beside(policy, machine, 20, num_tokens, machine.step_s(num_tokens, 20) * 4000)
    assert policy.allowed_tokens(20) == pytest.approx(allowed, rel=0.05)
    assert policy.allowed_tokens(20, False) == pytest.approx(40, rel=0.05)
    _read_beside(policy, machine, 20, 20, machine.step_s(20, 20) * 4000)
    assert policy.allowed_tokens(20) == pytest.approx(120, rel=0.05)


def test_what_a_measuring_step_leaves_unread_does_not_end_the_reading():
    policy, machine = _policy(), _Machine(decode_s=0.04)
    _Machine().run(policy, 0)
    policy.observe(0.04, 0, 8)
    allowed = []
    for _ in range(2 * (MAX_MIXED_STEPS + 1)):
        allowed.append(policy.max_prefill_tokens(8))
        policy.observe(machine.step_s(allowed[-1], 8), allowed[-1], 8)
    assert allowed[MAX_MIXED_STEPS] == 0
    assert allowed[MAX_MIXED_STEPS + 1] == pytest.approx(160, rel=0.05)


@pytest.mark.parametrize(("num_tokens", "took_s"), [(10, 0.15), (2000, 0.45)])
def test_half_of_that_while_a_quiet_tenants_requests_come(num_tokens: int, took_s: float) -> None:
    policy, machine = _policy(), _Machine(decode_s=0.04)
    _Machine().run(policy, 0)
    _read_beside(policy, machine, 8, num_tokens, machine.step_s(num_tokens, 8) * 2000)
    policy.shorten()
    assert machine.step_s(policy.allowed_tokens(8), 8) == pytest.approx(took_s, rel=0.05)


def test_steps_without_decodes_say_nothing_of_those_with():
    policy, machine = _policy(), _Machine(decode_s=0.04)
    for _ in range(20_000):
        policy.observe(0.4, 400, 0)
    _read_beside(policy, machine, 4, 160, 2.0)
    assert machine.step_s(policy.allowed_tokens(4), 4) == pytest.approx(0.2, rel=0.05)


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


# Many clients, each of which sends its next request when it has its answer.


@dataclass
class _Request:
    began_s: float
    num_unread: int = 840
    num_outputs_left: int = 150


def _serve(num_clients: int, num_requests_each: int) -> tuple[list[float], list[float]]:
    """Times to the first token and between tokens, by a machine whose prompts are dear."""
    policy, now_s = _policy(), 0.0
    waiting = deque(_Request(0.0) for _ in range(num_clients))
    streams: list[_Request] = []
    num_to_come = num_clients * (num_requests_each - 1)
    firsts: list[float] = []
    gaps: list[float] = []
    while waiting or streams:
        num_read = policy.max_prefill_tokens(len(streams))
        begun, num_left = [], num_read
        while waiting and num_left:
            num_tokens = min(num_left, waiting[0].num_unread)
            waiting[0].num_unread -= num_tokens
            num_left -= num_tokens
            if not waiting[0].num_unread:
                begun.append(waiting.popleft())
        num_read -= num_left
        decode_s = 0.035 + 0.005 * len(streams) if streams else 0.0
        step_s = decode_s + 0.0025 * num_read
        policy.observe(step_s, num_read, len(streams))
        now_s += step_s
        gaps += [step_s] * len(streams)
        firsts += [now_s - each.began_s for each in begun]
        for each in streams:
            each.num_outputs_left -= 1
        for _ in [each for each in streams if not each.num_outputs_left]:
            if num_to_come:
                num_to_come -= 1
                waiting.append(_Request(now_s))
        streams = [each for each in streams if each.num_outputs_left] + begun
    return firsts, gaps


@pytest.mark.parametrize(("num_clients", "first_s", "gap_s"), [(8, 5.0, 0.3), (32, 10.0, 0.9)])
def test_requests_of_many_clients_run_rather_than_wait(
    num_clients: int, first_s: float, gap_s: float
) -> None:
    firsts, gaps = _serve(num_clients, 6)
    assert median(firsts) < first_s
    assert quantiles(gaps, n=20)[-1] < gap_s
