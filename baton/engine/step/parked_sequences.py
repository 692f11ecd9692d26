"""Takes the blocks of sequences that nobody reads: two looks in a row without credit or progress.

They go back to the queue, where they wait for credit alone. Their full blocks stay in the prefix
cache until somebody needs them, so that a reader who comes back soon costs the compute of one block
and one who never does costs nobody any room. Those that were parked a moment ago keep theirs: that
is how every reader looks who is slower than the model.
"""

from baton.engine.sequence.sequence import Sequence
from baton.engine.step.scheduler import Scheduler
from baton.system.clock import Clock

LOOK_S = 1.0


class ParkedWatch:
    """Of one scheduler."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._due = 0.0
        # Tokens of those that were parked at the last look.
        self._seen: dict[int, int] = {}

    @property
    def next_look(self) -> float | None:
        """When to look although nothing else happens; None while nobody is parked with blocks."""
        running = self._scheduler.running.snapshot()
        return self._due if any(self._may_take(seq) for seq in running) else None

    def look(self) -> int:
        """Take what is to be taken, if it is time; returns from how many sequences."""
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
