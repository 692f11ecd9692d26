"""Takes the blocks of sequences without a reader: two looks in a row without credit or progress.

Such a sequence goes back to the queue, where it waits for credit alone. Its full blocks stay in the
prefix cache until another sequence needs them: a reader that comes back soon costs the compute of
one block, and one that never does costs no room. A sequence that was parked a moment ago keeps its
blocks: every reader that is slower than the model looks like that.
"""

from baton.engine.sequence.sequence import Sequence
from baton.engine.step.scheduler import Scheduler
from baton.system.clock import Clock

LOOK_S = 1.0


class ParkedWatch:
    """Watches the parked sequences of one scheduler."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._due = 0.0
        # Tokens of the sequences that were parked at the last look.
        self._seen: dict[int, int] = {}

    @property
    def next_look(self) -> float | None:
        """The time of the next look; None while no sequence is parked with blocks."""
        running = self._scheduler.running.snapshot()
        return self._due if any(self._may_take(seq) for seq in running) else None

    def look(self) -> int:
        """Take the blocks that are due, if it is time; returns from how many sequences."""
        now = self._clock.now()
        if now < self._due:
            return 0
        self._due = now + LOOK_S
        before, self._seen, num_taken = self._seen, {}, 0
        for seq in self._scheduler.running.snapshot():
            if not self._may_take(seq):
                continue
            if before.get(seq.request.seq_id) == seq.num_tokens:
                self._scheduler.requeue(seq)
                num_taken += 1
            else:
                self._seen[seq.request.seq_id] = seq.num_tokens
        return num_taken

    @staticmethod
    def _may_take(seq: Sequence) -> bool:
        return seq.lacks_credit and seq.can_be_preempted
