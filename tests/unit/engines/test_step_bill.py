"""What steps of vLLM cost is divided among their sequences to the last microsecond."""

from baton.engine.protocol.messages import EngineLoad, StepEvents
from baton.engines.vllm.step_bill import Share, StepBill
from baton.testing.virtual_clock import VirtualClock


def new_events() -> StepEvents:
    return StepEvents(0, EngineLoad(0, 0, 0, 0, 0, 0.0, 0.0))


def test_a_step_is_divided_by_tokens_and_prefill_is_told_apart() -> None:
    clock, events = VirtualClock(), new_events()
    bill = StepBill(clock)
    bill.begin()
    clock.advance(0.1)
    shares = [Share(1, 9, 2, True, False), Share(2, 1, 3, False, False)]
    assert bill.charge(shares, events) == 0.1
    bill.report(events)
    assert events.busy_us == sum(events.spent_us) == 100_000
    assert dict(zip(events.spent_seq_ids, events.spent_us, strict=True)) == {1: 90_000, 2: 10_000}
    assert events.prefills == [(0, 0)]
    assert (events.num_step_seqs, events.num_step_tokens) == (2, 10)


def test_what_a_preemption_took_is_told_as_computed_again() -> None:
    clock, events = VirtualClock(), new_events()
    bill = StepBill(clock)
    bill.begin()
    clock.advance(0.1)
    bill.charge([Share(1, 9, 2, True, True)], events)
    assert events.prefills == [(0, 100_000)]


def test_blocks_are_billed_for_as_long_as_they_are_held() -> None:
    clock = VirtualClock()
    bill = StepBill(clock)
    bill.begin()
    first = new_events()
    bill.charge([Share(1, 9, 2, True, False)], first)
    clock.advance(1.0)
    second = new_events()
    bill.charge([Share(1, 9, 3, True, False)], second)
    assert (first.held_block_us, second.held_block_us) == ([0], [2_000_000])
    clock.advance(1.0)
    bill.leave(1)
    last = new_events()
    bill.report(last)
    assert (last.left_seq_ids, last.left_block_us) == ([1], [3_000_000])


def test_a_core_without_work_is_not_busy() -> None:
    clock, events = VirtualClock(), new_events()
    bill = StepBill(clock)
    for _ in range(2):
        bill.begin()
        bill.idle()
        clock.advance(5.0)
    bill.begin()
    clock.advance(0.5)
    assert bill.charge((), events) == 0.5
