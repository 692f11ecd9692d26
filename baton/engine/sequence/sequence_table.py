"""All live sequences of an engine by id, and which of them have run out of time."""

from collections.abc import Iterable, Iterator

from baton.engine.sequence.sequence import Sequence, SequenceState

# The front may be reading or writing the blocks of the others: only the front ends those.
_EXPIRING_STATES = (
    SequenceState.WAITING,
    SequenceState.RUNNING,
    SequenceState.PROMISED,
    SequenceState.FORKING,
    SequenceState.EMITTING,
)


class SequenceTable:
    """The sequences of one engine; its queue, batch and blocks bound their number."""

    def __init__(self) -> None:
        self._by_id: dict[int, Sequence] = {}
        self._num_arrived = 0
        # No deadline is earlier; it may name a sequence that has ended since.
        self.next_deadline: float | None = None

    def next_arrival(self) -> int:
        """A number that grows with every sequence."""
        self._num_arrived += 1
        return self._num_arrived

    def add(self, seq: Sequence) -> None:
        assert seq.request.seq_id not in self._by_id, f"seq_id {seq.request.seq_id} reused"
        self._by_id[seq.request.seq_id] = seq
        self.watch_deadline(seq)

    def watch_deadline(self, seq: Sequence) -> None:
        """Take into account the deadline of a sequence that may expire from now on."""
        deadline = seq.request.deadline
        if deadline is not None:
            earlier = self.next_deadline is None or deadline < self.next_deadline
            self.next_deadline = deadline if earlier else self.next_deadline

    def get(self, seq_id: int) -> Sequence | None:
        return self._by_id.get(seq_id)

    def remove(self, seq: Sequence) -> None:
        seq.state = SequenceState.ENDED
        del self._by_id[seq.request.seq_id]

    @property
    def num_not_started(self) -> int:
        """Batch slots for remote sequences that have a promise or blocks and will run."""
        states = (SequenceState.PROMISED, SequenceState.BOUND)
        joining = (seq for seq in self._by_id.values() if seq.state in states)
        return sum(max(seq.num_batch_slots, seq.num_choices) for seq in joining)

    def all(self) -> Iterable[Sequence]:
        return self._by_id.values()

    def block_holders(self) -> Iterator[Sequence]:
        """All sequences that may have blocks: the live ones, and the beams of searches."""
        for seq in self._by_id.values():
            yield seq
            if seq.group is not None and seq.group.leader is seq:
                yield from seq.group.beams

    def expired(self, now: float) -> list[Sequence]:
        """The sequences that the engine may end and that have reached their deadline."""
        if self.next_deadline is None or now < self.next_deadline:
            return []
        expired: list[Sequence] = []
        self.next_deadline = None
        for seq in self._by_id.values():
            deadline = seq.request.deadline
            if deadline is None or seq.state not in _EXPIRING_STATES:
                continue
            if deadline <= now:
                expired.append(seq)
            else:
                self.watch_deadline(seq)
        return expired
