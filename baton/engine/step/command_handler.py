"""Applies the front's commands to the engine's state between two steps."""

from baton.engine.kv.block_manager import PrefixMatch
from baton.engine.protocol.adapter_messages import ServeAdapters
from baton.engine.protocol.cache_messages import SnapshotHashes
from baton.engine.protocol.device_messages import DeviceCommand
from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Admitted,
    Bind,
    Bound,
    Command,
    Credit,
    Finished,
    Probe,
    Release,
    SequenceRefused,
    Shutdown,
    Start,
)
from baton.engine.protocol.reasons import RefusalReason
from baton.engine.sequence.pooled_sum import PooledSum
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.admission import (
    find_fault,
    max_total_tokens,
    reason_at_start,
    with_beam_logprobs,
)
from baton.engine.step.engine_state import EngineState
from baton.engine.step.parallel_sampling import ParallelSampling
from baton.wire.limits import num_extra_slots


class CommandHandler:
    """Applies the commands of one engine's front."""

    def __init__(self, state: EngineState, parallel: ParallelSampling, max_waiting: int) -> None:
        self._state = state
        self._parallel = parallel
        self._max_waiting = max_waiting

    def apply(self, command: Command) -> None:
        """Do what the front asks. Unknown and ended sequences are ignored."""
        if isinstance(command, AddSequence):
            self._add(command)
        elif isinstance(command, SnapshotHashes):
            self._state.wants_snapshot = True
        elif isinstance(command, Probe):
            self._state.wants_probe = True
        elif isinstance(command, ServeAdapters):
            assert not command.adapters, "the front knows that this engine serves none"
        elif isinstance(command, DeviceCommand):
            assert self._state.device is not None, "the front knows whether there is one"
            self._state.device.apply(command)
        elif not isinstance(command, Shutdown):
            seq = self._state.sequences.get(command.seq_id)
            if seq is not None:
                self._change(seq, command)
            if isinstance(command, Abort | Release):
                self._state.events.freed.append(command.seq_id)

    def _change(self, seq: Sequence, command: Bind | Start | Credit | Abort | Release) -> None:
        match command:
            case Credit(up_to_index=index):
                seq.grant(index)
                if seq.state is SequenceState.EMITTING:
                    self._parallel.emit(seq)
            case Bind(is_on_device=is_on_device):
                self._bind(seq, is_on_device=is_on_device)
            case Start():
                self._start(seq, command)
            case Abort() | Release() if seq.group is not None:
                self._parallel.abort(seq, seq.group)
            case Abort() | Release():
                self._state.drop(seq)

    def _add(self, request: AddSequence) -> None:
        state = self._state
        fault = find_fault(request, state.info)
        if fault is not None:
            state.events.refused.append(fault)
            return
        request = with_beam_logprobs(request, state.info)
        arrival = state.sequences.next_arrival()
        seq = Sequence(request, arrival, state.manager.root_hash(request))
        if request.pools and state.info.pooling is not None:
            seq.pooled = PooledSum(state.info.pooling)
        reason = reason_at_start(seq, state.info)
        if reason is not None:
            state.events.finished.append(Finished(request.seq_id, reason, request.num_emitted))
        elif request.kind == "remote":
            self._promise(seq)
        elif state.scheduler.num_waiting >= self._max_waiting:
            self._refuse(seq, "overloaded", f"{self._max_waiting} sequences wait already")
        else:
            self._register(seq)
            state.scheduler.wait(seq)

    def _register(self, seq: Sequence) -> None:
        self._state.add(seq)
        request = seq.request
        is_searching = request.sampling.beam_width > 0 and request.kind != "prefill"
        if request.forks or is_searching:
            self._parallel.form_group(seq)

    def _promise(self, seq: Sequence) -> None:
        """Admit a remote sequence: its cached blocks are pinned, room for the others is sure."""
        state, scheduler, manager = self._state, self._state.scheduler, self._state.manager
        max_num_seqs, num_forks = state.info.max_num_seqs, len(seq.request.forks)
        num_batch_seqs = scheduler.num_batch_seqs + state.sequences.num_not_started
        has_extra = seq.request.is_quiet and not num_forks
        num_extra = num_extra_slots(max_num_seqs) if has_extra else 0
        # More forks than there are batch slots take turns.
        if num_batch_seqs + min(1 + num_forks, max_num_seqs) > max_num_seqs + num_extra:
            message = f"{num_batch_seqs} of {max_num_seqs} places are taken"
            self._refuse(seq, "no_room", message)
            return
        match = self._match_prefix(seq)
        if not manager.can_allocate(match, scheduler.num_reserved_blocks):
            num_blocks = match.num_free_needed + scheduler.num_awaited_blocks
            state.events.num_preemptions += scheduler.displace_parked(num_blocks)
            match = self._match_prefix(seq)
        if not manager.can_promise(seq, match, scheduler.num_reserved_blocks):
            self._refuse(seq, "no_room", f"{match.num_free_needed} blocks cannot be promised")
            return
        # Blocks that the device reads itself need no rows, unless that fails.
        num_missing = manager.num_blocks_for(seq.num_tokens) - len(match.cached_ids)
        num_rows = num_missing if state.device is None else 0
        if not manager.rows.lease(seq.request.seq_id, num_rows):
            self._refuse(seq, "no_room", _no_rows(num_rows))
            return
        manager.promise(seq, match)
        seq.state = SequenceState.PROMISED
        self._register(seq)
        admitted = Admitted(seq.request.seq_id, len(match.cached_ids))
        state.events.admitted.append(admitted)

    def _match_prefix(self, seq: Sequence) -> PrefixMatch:
        num_tokens = max_total_tokens(seq, self._state.info)
        return self._state.manager.match_remote_prefix(seq, num_tokens, len(seq.request.forks))

    def _refuse(self, seq: Sequence, reason: RefusalReason, message: str) -> None:
        refused = SequenceRefused(seq.request.seq_id, reason, message)
        self._state.events.refused.append(refused)

    def _bind(self, seq: Sequence, *, is_on_device: bool) -> None:
        state, manager, seq_id = self._state, self._state.manager, seq.request.seq_id
        if seq.state is SequenceState.PROMISED:
            seq.state = SequenceState.BOUND
            manager.bind(seq)
        assert seq.state is SequenceState.BOUND, seq
        blocks = manager.traveling_blocks(seq)
        if not is_on_device and not manager.rows.lease(seq_id, len(blocks)):
            self._refuse(seq, "no_room", _no_rows(len(blocks)))
            self._change(seq, Abort(seq_id))
            return
        rows = blocks if is_on_device else manager.rows.rows_of(seq_id, blocks)
        num_blocks = manager.num_blocks_for(seq.num_tokens)
        state.events.bound.append(Bound(seq_id, rows, num_blocks))

    def _start(self, seq: Sequence, command: Start) -> None:
        """A remote sequence's blocks are all here; the prefill worker sampled its first token."""
        assert seq.state is SequenceState.BOUND, seq
        seq.num_computed_tokens = seq.num_tokens
        manager = self._state.manager
        if not command.is_on_device:
            manager.rows.copy_in(seq.request.seq_id, manager.traveling_blocks(seq))
        manager.register_full_blocks(seq)
        if seq.group is not None:
            self._parallel.start(seq, seq.group, command)
        else:
            self._state.go_on(seq, command.first_token)


def _no_rows(num_rows: int) -> str:
    return f"{num_rows} rows of the staging ring are not free"
