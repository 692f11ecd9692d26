"""The engine's time by sequence, as its core reports it step by step, and how much was billed.

A sequence is billed while it is open, or with what `close` returns. What the core reports later, of
a step that ran when the sequence was given up, is on no bill, and neither are probes: `unbilled_us`
has them, so that the sum is the time of all steps.

What blocks a sequence holds is told now and then. A sequence that is closed in between is billed
for those that it held last, until then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from baton.engine.protocol.messages import StepEvents
from baton.system.clock import Clock


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


@dataclass(slots=True)
class _Held:
    """The blocks that an open sequence holds since `since_us`, and what it held since the core told
    that last, in blocks times microseconds."""

    num_blocks: int = 0
    since_us: int = 0
    untold_block_us: int = 0

    def change(self, num_blocks: int, now_us: int) -> None:
        """It holds so many from now on, and the core has not told yet what it held before."""
        self.untold_block_us += self.num_blocks * (now_us - self.since_us)
        self.num_blocks, self.since_us = num_blocks, now_us

    def told(self, now_us: int) -> None:
        """The core has told what it held until now; it may hold none any more."""
        self.num_blocks = self.untold_block_us = 0
        self.since_us = now_us


class EngineTimes:
    """The time of one core."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.busy_us = 0
        self._billed_us = 0
        # Of open sequences, and not billed yet.
        self._open_us = 0
        self._of: dict[int, SequenceTime] = {}
        self._held: dict[int, _Held] = {}

    @property
    def unbilled_us(self) -> int:
        """Time that is on no bill, and will not be."""
        return self.busy_us - self._billed_us - self._open_us

    def open(self, seq_id: int) -> None:
        """Count a sequence's time from now on."""
        self._of[seq_id] = SequenceTime()
        self._held[seq_id] = _Held()

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
        self._take_held(events)

    def take(self, seq_id: int) -> SequenceTime:
        """What an open sequence cost since the last call."""
        return self._swap(seq_id, SequenceTime())

    def close(self, seq_id: int) -> SequenceTime:
        """As `take`, with the blocks that it holds until now; the sequence is not counted any more.
        Unknown ones cost nothing."""
        if seq_id not in self._of:
            return SequenceTime()
        time, held = self._swap(seq_id, SequenceTime()), self._held.pop(seq_id)
        del self._of[seq_id]
        held.change(0, self._now_us())
        time.held_block_us += held.untold_block_us
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

    def _take_held(self, events: StepEvents) -> None:
        """Take in what was held until now, then what is held from now on."""
        if events.held_block_us or events.left_seq_ids:
            now_us, columns = self._now_us(), (events.spent_seq_ids, events.held_block_us)
            left = zip(events.left_seq_ids, events.left_block_us, strict=True)
            for seq_id, block_us in chain(zip(*columns, strict=False), left):
                if seq_id in self._of:
                    self._of[seq_id].held_block_us += block_us
                    self._held[seq_id].told(now_us)
            # Several beams are one sequence.
            for seq_id, num_blocks in zip(events.spent_seq_ids, events.held_blocks, strict=False):
                if (held := self._held.get(seq_id)) is not None:
                    held.num_blocks += num_blocks
        for seq_id, num_blocks in _new_tables(events):
            if (held := self._held.get(seq_id)) is not None:
                held.change(num_blocks, self._now_us())

    def _now_us(self) -> int:
        return int(self._clock.now() * 1e6)


def _new_tables(events: StepEvents) -> Iterator[tuple[int, int]]:
    """The sequences that were given blocks, and how many they hold now."""
    for admitted in events.admitted:
        yield admitted.seq_id, admitted.num_cached_blocks
    for bound in events.bound:
        yield bound.seq_id, bound.num_blocks
    for started in events.started:
        yield started.seq_id, started.num_blocks
