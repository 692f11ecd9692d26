"""The engine's time by sequence, as its core reports it step by step, and how much was billed.

A sequence is billed while it is open, or with what `close` returns. What the core reports later, of
a step that ran when the sequence was given up, is on no bill, and neither are probes: `unbilled_us`
has them, so that the sum is the time of all steps.
"""

from dataclasses import dataclass

from baton.engine.protocol.messages import StepEvents


@dataclass(slots=True)
class SequenceTime:
    """What a sequence cost, in microseconds, and the blocks that it held times microseconds.

    `redone_us` is a part of `prefill_us`: what a preemption had taken was computed again.
    """

    prefill_us: int = 0
    decode_us: int = 0
    redone_us: int = 0
    held_block_us: int = 0

    @property
    def total_us(self) -> int:
        return self.prefill_us + self.decode_us


class EngineTimes:
    """The time of one core."""

    def __init__(self) -> None:
        self.busy_us = 0
        self._billed_us = 0
        # Of open sequences, and not billed yet.
        self._open_us = 0
        self._of: dict[int, SequenceTime] = {}

    @property
    def unbilled_us(self) -> int:
        """Time that is on no bill, and will not be."""
        return self.busy_us - self._billed_us - self._open_us

    def open(self, seq_id: int) -> None:
        """Count a sequence's time from now on."""
        self._of[seq_id] = SequenceTime()

    def take_in(self, events: StepEvents) -> None:
        """Take in what a step cost."""
        self.busy_us += events.busy_us
        if events.prefills:
            self._take_prefills(events)
        for seq_id, spent_us in zip(events.spent_seq_ids, events.spent_us, strict=True):
            time = self._of.get(seq_id)
            if time is not None:
                time.decode_us += spent_us
                self._open_us += spent_us
        for seq_id, held_block_us in zip(events.spent_seq_ids, events.held_block_us, strict=False):
            time = self._of.get(seq_id)
            if time is not None:
                time.held_block_us += held_block_us

    def take(self, seq_id: int) -> SequenceTime:
        """What an open sequence cost since the last call."""
        return self._swap(seq_id, SequenceTime())

    def close(self, seq_id: int) -> SequenceTime:
        """As `take`; the sequence is not counted any more. Unknown ones cost nothing."""
        if seq_id not in self._of:
            return SequenceTime()
        time = self._swap(seq_id, SequenceTime())
        del self._of[seq_id]
        return time

    def billed(self, time: SequenceTime) -> None:
        """What was taken is on its way to a bill."""
        self._billed_us += time.total_us

    def _swap(self, seq_id: int, fresh: SequenceTime) -> SequenceTime:
        time, self._of[seq_id] = self._of[seq_id], fresh
        self._open_us -= time.total_us
        return time

    def _take_prefills(self, events: StepEvents) -> None:
        """Move what the columns have of prefills from decode to prefill, before they are added."""
        for index, redone_us in events.prefills:
            time = self._of.get(events.spent_seq_ids[index])
            if time is not None:
                spent_us = events.spent_us[index]
                time.prefill_us += spent_us
                time.decode_us -= spent_us
                time.redone_us += redone_us
