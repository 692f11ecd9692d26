"""The time of each step belongs to its sequences, to the last microsecond."""

from collections import Counter

import pytest

from baton.engine.kv.block_manager import NUM_GROWTH_BLOCKS, BlockManager
from baton.engine.protocol.engine_time import EngineTimes
from baton.engine.protocol.messages import (
    Abort,
    Bind,
    Command,
    Credit,
    Probe,
    Start,
    StepEvents,
)
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.engine import Engine, EngineConfig
from baton.engine.step.step_timer import divide, divide_evenly
from baton.testing.engine_driver import add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock

BLOCK_SIZE = 16


class TimedEngine:
    """An engine whose steps take as long as they are told, and what its sequences cost."""

    def __init__(self, num_blocks: int = 64, **sizes: int) -> None:
        self.clock = VirtualClock()
        config = EngineConfig("fake-model", "fake", "1", num_blocks, **sizes)
        self.engine = Engine(config, FakeRunner(), self.clock)
        pool = bytearray(self.engine.num_pool_rows * self.engine.info.kv_spec.row_bytes)
        self.engine.runner.bind_pool(memoryview(pool))
        self.times = EngineTimes(self.clock)
        self.num_preemptions = 0
        # The pool's references times microseconds, and that of sequences.
        self.referenced_block_us = 0
        self.told_block_us = 0
        self._integrated_us = 0

    def step(self, *commands: Command, seconds: float = 0.01) -> StepEvents | None:
        num_references = self._manager.num_references
        batch = self.engine.begin_step(commands)
        self._integrate(num_references)
        num_references = self._manager.num_references
        self.clock.advance(seconds)
        result = None if batch is None else self.engine.runner.run(batch)
        events = self.engine.finish_step(result)
        self._integrate(num_references)
        if events is not None:
            self.num_preemptions += events.num_preemptions
            self.told_block_us += sum(events.held_block_us) + sum(events.left_block_us)
            self.times.take_in(events)
        return events

    @property
    def _manager(self) -> BlockManager:
        return self.engine._state.manager

    def _integrate(self, num_references: int) -> None:
        """The pool had so many references until its time of now."""
        now_us = self._manager.now_us
        self.referenced_block_us += num_references * (now_us - self._integrated_us)
        self._integrated_us = now_us

    def open(self, seq_id: int, num_tokens: int, **fields: object) -> Command:
        self.times.open(seq_id)
        return add_sequence(seq_id, prompt_of(seq_id, num_tokens), **fields)  # type: ignore[arg-type]


def prompt_of(seq_id: int, num_tokens: int) -> list[int]:
    return [(seq_id * 101 + 7 * place) % 990 for place in range(num_tokens)]


@pytest.mark.parametrize("total", [0, 1, 17, 1_000_003])
@pytest.mark.parametrize("weights", [[1], [3, 1, 1], [5] * 7, [1, 10_000, 1]])
def test_whole_parts_add_up_to_the_total(total: int, weights: list[int]) -> None:
    for parts in (divide(total, weights), divide_evenly(total, len(weights))):
        assert sum(parts) == total
        assert len(parts) == len(weights)
        assert min(parts) >= 0
    whole = sum(weights)
    for part, weight in zip(divide(total, weights), weights, strict=True):
        assert abs(part - total * weight / whole) < 1


def test_decodes_of_a_step_pay_alike() -> None:
    timed = TimedEngine()
    timed.step(*(timed.open(seq_id, 8, max_tokens=4) for seq_id in (1, 2, 3)))
    for seq_id in (1, 2, 3):
        timed.times.take(seq_id)
    timed.step(seconds=0.030)
    assert [timed.times.take(seq_id).decode_us for seq_id in (1, 2, 3)] == [10_000] * 3


def test_a_prompt_pays_what_its_tokens_cost_lately_and_not_for_the_decodes_beside_it() -> None:
    timed = TimedEngine(max_num_seqs=8)
    timed.step(timed.open(1, 64, max_tokens=20), seconds=0.064)  # 1 ms a token
    timed.step(seconds=0.016)  # the decode by itself
    timed.times.take(1)
    timed.step(timed.open(2, 64, max_tokens=20), seconds=0.160)  # twice as long as both were
    prompt, decode = timed.times.take(2), timed.times.take(1)
    assert (prompt.prefill_us, prompt.decode_us) == (128_000, 0)
    assert (decode.prefill_us, decode.decode_us) == (0, 32_000)


def test_prompts_of_a_step_pay_by_their_tokens() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 30), timed.open(2, 10), seconds=0.040)
    assert [timed.times.take(seq_id).prefill_us for seq_id in (1, 2)] == [30_000, 10_000]


def test_nothing_measured_means_that_tokens_cost_alike() -> None:
    assert ChunkPolicy(100, None).prefill_share(30, 10) == 0.75


def test_what_a_preemption_took_is_counted_as_done_again() -> None:
    timed = TimedEngine(num_blocks=8, max_num_seqs=4)
    commands = [timed.open(seq_id, 3 * BLOCK_SIZE - 2, max_tokens=40) for seq_id in (1, 2)]
    timed.step(*commands)
    while timed.engine.has_work:
        timed.step()
    assert timed.num_preemptions > 0
    redone = [timed.times.take(seq_id) for seq_id in (1, 2)]
    assert sum(time.redone_us for time in redone) > 0
    assert all(time.redone_us <= time.prefill_us for time in redone)
    assert timed.times.unbilled_us == timed.times.busy_us


def test_the_blocks_that_a_sequence_holds_are_counted_for_as_long_as_it_holds_them() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 2 * BLOCK_SIZE - 1, max_tokens=4, credit=2), seconds=0.010)
    assert timed.times.take(1).held_block_us == 2 * 10_000
    timed.step(seconds=0.010)
    timed.step(seconds=0)  # it has no credit for more
    timed.clock.advance(0.100)
    timed.step(Credit(1, 9), seconds=0.010)
    timed.step(seconds=0.010)
    assert not timed.engine.measure_load().num_running
    assert timed.times.take(1).held_block_us == 2 * 110_000 + 3 * 20_000


def test_blocks_of_a_handoff_are_held_from_when_they_are_bound() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 2 * BLOCK_SIZE, max_tokens=1), seconds=0)
    timed.step(
        add_sequence(2, prompt_of(1, 2 * BLOCK_SIZE), kind="remote", max_tokens=99), seconds=0
    )
    timed.step(Bind(2), seconds=0)
    timed.clock.advance(0.05)
    timed.times.open(2)
    timed.step(Start(2, first_token=5), seconds=0.01)
    while not (held_block_us := timed.times.take(2).held_block_us):
        timed.step(seconds=0)
    assert held_block_us == (2 + NUM_GROWTH_BLOCKS) * 60_000


def test_a_sequence_that_is_given_up_is_billed_for_its_blocks_until_then() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 2 * BLOCK_SIZE - 9, max_tokens=40, credit=5), seconds=0.010)
    for _ in range(4):
        timed.step(seconds=0.010)
    timed.step(seconds=0)  # it has no credit for more
    timed.clock.advance(0.300)
    assert timed.times.close(1).held_block_us == 2 * 350_000


def test_a_handoff_that_is_given_up_is_billed_for_the_blocks_that_waited() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 2 * BLOCK_SIZE, max_tokens=1), seconds=0)
    timed.times.open(2)
    remote = add_sequence(2, prompt_of(1, 3 * BLOCK_SIZE), kind="remote", max_tokens=99)
    timed.step(remote, seconds=0)
    timed.clock.advance(0.1)  # two are cached
    timed.step(Bind(2), seconds=0)
    timed.clock.advance(0.05)
    assert timed.times.close(2).held_block_us == 2 * 100_000 + 3 * 50_000


def test_every_block_that_is_held_is_told_however_its_sequence_ends() -> None:
    timed = TimedEngine(num_blocks=9, max_num_seqs=4)
    crowd = [timed.open(seq_id, 3 * BLOCK_SIZE - 2, max_tokens=40) for seq_id in (1, 2)]
    late = timed.open(3, 20, max_tokens=90, deadline=timed.clock.now() + 0.1)
    timed.step(*crowd, late, timed.open(4, 9, max_tokens=90), seconds=0.003)
    for _ in range(11):
        timed.step(seconds=0.003)
    timed.step(Abort(4), seconds=0.003)
    while timed.engine.has_work:
        timed.step(seconds=0.0037)
    assert timed.num_preemptions > 0
    assert timed.told_block_us == timed.referenced_block_us > 0


def test_a_step_that_ran_when_its_sequence_was_given_up_is_on_no_bill() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 8, max_tokens=9), timed.open(2, 8, max_tokens=9), seconds=0.010)
    timed.times.billed(timed.times.close(1))
    timed.step(seconds=0.010)
    timed.step(Abort(1), seconds=0.010)
    assert timed.times.unbilled_us == 5_000
    timed.times.billed(timed.times.close(2))
    assert timed.times.unbilled_us == 5_000
    assert timed.times.busy_us == 30_000


def test_time_between_two_steps_is_the_second_ones_unless_there_was_nothing_to_do() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 8, max_tokens=3), seconds=0.010)
    timed.clock.advance(0.002)
    timed.step(seconds=0.010)
    timed.step(seconds=0.010)
    timed.step(seconds=0.050)
    assert timed.times.take(1).total_us == timed.times.busy_us == 32_000


def test_the_reported_step_is_as_long_as_tokens_are_apart() -> None:
    timed = TimedEngine()
    timed.step(timed.open(1, 8, max_tokens=9), seconds=0.010)
    for _ in range(3):
        timed.clock.advance(0.002)  # reports and commands
        timed.step(seconds=0.004)
    assert timed.engine.measure_load().decode_step_s == pytest.approx(0.006)


def test_a_probe_is_busy_time_on_no_bill() -> None:
    timed = TimedEngine()
    timed.step()
    timed.step(Probe(), seconds=0.02)
    timed.step(timed.open(1, 8, max_tokens=1), seconds=0.01)
    assert timed.times.busy_us == 30_000
    assert timed.times.unbilled_us == 20_000


def test_every_step_of_a_crowd_with_drafts_forks_and_preemptions_is_divided_whole() -> None:
    timed = TimedEngine(num_blocks=24, max_num_seqs=6, num_draft_tokens=3)
    for seq_id in range(1, 13):
        timed.step(timed.open(seq_id, 5 + 7 * seq_id % 60, max_tokens=30), seconds=0.003)
    while timed.engine.has_work:
        timed.step(seconds=0.0037)
    spent = Counter({seq_id: timed.times.take(seq_id).total_us for seq_id in range(1, 13)})
    assert spent.total() == timed.times.busy_us
    assert min(spent.values()) > 0
