"""The front's commands, applied to the engine's state between two steps."""

from baton.engine.admission import find_fault, is_exhausted, max_total_tokens
from baton.engine.engine_state import EngineState
from baton.engine.messages import (
    Abort,
    AddSequence,
    Admitted,
    Bind,
    Bound,
    Command,
    Credit,
    Finished,
    Release,
    SequenceRefused,
    Shutdown,
    SnapshotHashes,
    Start,
)
from baton.engine.sequence import Sequence, SequenceState


class CommandHandler:
    """`wants_snapshot` stays set until somebody has taken it."""

    def __init__(self, state: EngineState, max_waiting: int) -> None:
        self.wants_snapshot = False
        self._state = state
        self._max_waiting = max_waiting

    def apply(self, command: Command) -> None:
        """Do what the front asks. Unknown and ended sequences are ignored."""
        if isinstance(command, AddSequence):
            self._add(command)
        elif isinstance(command, SnapshotHashes):
            self.wants_snapshot = True
        elif not isinstance(command, Shutdown):
            seq = self._state.sequences.get(command.seq_id)
            if seq is not None:
                self._change(seq, command)

    def _change(self, seq: Sequence, command: Bind | Start | Credit | Abort | Release) -> None:
        match command:
            case Credit(up_to_index=index):
                seq.credit = max(seq.credit, index)
            case Bind():
                self._bind(seq)
            case Start():
                self._start(seq, command)
            case Abort() | Release():
                self._state.drop(seq)

    def _add(self, request: AddSequence) -> None:
        state = self._state
        fault = find_fault(request, state.info)
        if fault is not None:
            state.events.refused.append(fault)
            return
        arrival = state.sequences.next_arrival()
        seq = Sequence(request, arrival, state.manager.root_hash(request))
        if is_exhausted(seq, state.info):
            finished = Finished(request.seq_id, "length", request.num_emitted)
            state.events.finished.append(finished)
        elif request.kind == "remote":
            self._promise(seq)
        elif len(state.scheduler.waiting) >= self._max_waiting:
            self._refuse(seq, "overloaded", f"{self._max_waiting} sequences wait already")
        else:
            state.sequences.add(seq)
            state.scheduler.wait(seq)

    def _promise(self, seq: Sequence) -> None:
        """Admit a remote sequence: its cached blocks are pinned, room for the others is sure."""
        state, scheduler, manager = self._state, self._state.scheduler, self._state.manager
        num_batch_seqs = scheduler.num_batch_seqs + state.sequences.num_not_started
        if num_batch_seqs >= state.info.max_num_seqs:
            self._refuse(seq, "no_room", f"all {state.info.max_num_seqs} places are taken")
            return
        placement = manager.place_remote(seq, max_total_tokens(seq, state.info))
        if not manager.can_promise(seq, placement, scheduler.num_reserved_blocks):
            self._refuse(seq, "no_room", f"{placement.num_free_needed} blocks cannot be promised")
            return
        manager.promise(seq, placement)
        seq.state = SequenceState.PROMISED
        state.sequences.add(seq)
        admitted = Admitted(seq.request.seq_id, len(placement.cached_ids))
        state.events.admitted.append(admitted)

    def _refuse(self, seq: Sequence, reason: str, message: str) -> None:
        refused = SequenceRefused(seq.request.seq_id, reason, message)
        self._state.events.refused.append(refused)

    def _bind(self, seq: Sequence) -> None:
        assert seq.state is SequenceState.PROMISED, seq
        seq.state = SequenceState.BOUND
        block_ids = self._state.manager.bind(seq)
        self._state.events.bound.append(Bound(seq.request.seq_id, block_ids))

    def _start(self, seq: Sequence, command: Start) -> None:
        """A remote sequence's blocks are all here; the prefill worker sampled its first token."""
        assert seq.state is SequenceState.BOUND, seq
        seq.num_computed_tokens = seq.num_tokens
        self._state.manager.register_full_blocks(seq)
        self._state.go_on(seq, command.first_token)
