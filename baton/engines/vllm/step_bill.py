"""What each step cost, by sequence: its time, and the blocks that were held, as bills want it."""

from collections.abc import Sequence
from typing import NamedTuple

from baton.engine.protocol.messages import StepEvents
from baton.engine.step.step_timer import divide
from baton.system.clock import Clock

# Steps of decodes alone tell once in so many what blocks were held.
_HELD_EVERY = 8


class Share(NamedTuple):
    """A sequence's part of a step. `is_redone`: what a preemption had taken is computed again."""

    seq_id: int
    num_tokens: int
    num_blocks: int
    is_prefill: bool
    is_redone: bool


class _Held(NamedTuple):
    num_blocks: int
    since_us: int


class StepBill:
    """The bill of one engine. `begin`, then `charge` or `idle`, once a turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_us = 0
        self._is_busy = False
        self._busy_us = 0
        self._num_untold = 0
        self._held: dict[int, _Held] = {}
        self._left: dict[int, int] = {}

    def begin(self) -> None:
        """A turn begins; the time between two busy turns is the later one's."""
        if not self._is_busy:
            self._now_us = self._read()

    def skip(self) -> None:
        """Nobody is billed for what the turn has done so far."""
        self._now_us = self._read()

    def idle(self) -> None:
        """There was nothing to compute."""
        self._is_busy = False

    def charge(self, shares: Sequence[Share], events: StepEvents) -> float:
        """The step is computed; returns its seconds. It is divided by tokens."""
        now_us = self._read()
        step_us = now_us - self._now_us
        self._now_us = now_us
        self._is_busy = True
        self._busy_us += step_us
        if shares:
            num_tokens = [share.num_tokens for share in shares]
            events.num_step_seqs, events.num_step_tokens = len(shares), sum(num_tokens)
            events.spent_us = divide(step_us, num_tokens)
            events.spent_seq_ids = [share.seq_id for share in shares]
            events.prefills = [
                (place, events.spent_us[place] if share.is_redone else 0)
                for place, share in enumerate(shares)
                if share.is_prefill
            ]
            self._tell_held(shares, events)
        return step_us / 1e6

    def leave(self, seq_id: int) -> None:
        """The sequence has given its blocks back."""
        if (held := self._held.pop(seq_id, None)) is not None:
            self._left[seq_id] = held.num_blocks * (self._read() - held.since_us)

    def report(self, events: StepEvents) -> None:
        """Write what is left to tell."""
        events.busy_us, self._busy_us = self._busy_us, 0
        events.left_seq_ids, events.left_block_us = list(self._left), list(self._left.values())
        self._left = {}

    def _tell_held(self, shares: Sequence[Share], events: StepEvents) -> None:
        self._num_untold += 1
        if self._num_untold < _HELD_EVERY and not events.prefills:
            return
        self._num_untold = 0
        for seq_id, _, num_blocks, _, _ in shares:
            held = self._held.get(seq_id, _Held(0, self._now_us))
            events.held_block_us.append(held.num_blocks * (self._now_us - held.since_us))
            events.held_blocks.append(num_blocks)
            self._held[seq_id] = _Held(num_blocks, self._now_us)

    def _read(self) -> int:
        return int(self._clock.now() * 1e6)
