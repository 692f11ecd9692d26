"""The state that commands and steps change: the sequences, their blocks, the news for the front.

Tokens and ends of sequences go through here, so that table, queues, blocks and news always agree.
Does not decide when.
"""

from collections.abc import Iterable, Iterator

from baton.engine.kv.block_manager import BlockManager
from baton.engine.protocol.batch import RowLogprobs
from baton.engine.protocol.device_handoff import DeviceHandoff
from baton.engine.protocol.messages import (
    EngineInfo,
    EngineLoad,
    Finished,
    StepEvents,
    TokenLogprobs,
)
from baton.engine.protocol.reasons import FinishReason
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.admission import end_ids, finish_reason, max_total_tokens
from baton.engine.step.grammars import Grammars
from baton.engine.step.scheduler import Scheduler

# Differs from every measured one, so that the first step reports.
_NO_LOAD = EngineLoad(0, 0, -1, 0, 0, 0.0, 0.0)
# Remote sequences whose prompt is on its way.
_JOINING_STATES = (SequenceState.PROMISED, SequenceState.BOUND)
# The front may be reading or writing the blocks of the others: only the front ends those.
_EXPIRING_STATES = (
    SequenceState.WAITING,
    SequenceState.RUNNING,
    SequenceState.PROMISED,
    SequenceState.FORKING,
    SequenceState.EMITTING,
)


class SequenceTable:
    """All live sequences of an engine by id, and which of them have run out of time.

    The engine's queue, batch and blocks bound their number.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, Sequence] = {}
        # Some may have started, or ended, since the last count.
        self._joining: list[Sequence] = []
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
        if seq.state in _JOINING_STATES:
            self._joining.append(seq)
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
        self._joining = [seq for seq in self._joining if seq.state in _JOINING_STATES]
        return sum(max(seq.num_batch_slots, seq.num_choices) for seq in self._joining)

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


class EngineState:
    """Owned by one Engine. `events` collects the news since the last report.

    `wants_snapshot` and `wants_probe` are the front's: a report and a plan fulfil and clear them.
    """

    def __init__(
        self,
        info: EngineInfo,
        manager: BlockManager,
        scheduler: Scheduler,
        grammars: Grammars | None,
        device: DeviceHandoff | None,
    ) -> None:
        self.info = info
        self.manager = manager
        self.scheduler = scheduler
        self.sequences = SequenceTable()
        self.events = StepEvents(0, _NO_LOAD)
        self.grammars = grammars
        self.device = device
        self.wants_snapshot = False
        self.wants_probe = False

    def add(self, seq: Sequence) -> None:
        """A new sequence, in whatever state."""
        seq.end_ids = end_ids(seq.request.sampling, self.info)
        seq.max_num_tokens = max_total_tokens(seq, self.info)
        seq.grant(seq.credit)
        self.sequences.add(seq)
        if seq.request.sampling.grammar is not None:
            assert self.grammars is not None, "refused before"
            self.grammars.open(seq)

    def go_on(self, seq: Sequence, token: int) -> None:
        """Decode after `token`, an output token that the front knows already."""
        seq.append(token)
        reason = finish_reason(seq, token, self.info)
        if reason is not None:
            self.finish(seq, reason)
            return
        self.scheduler.run(seq)
        if self.grammars is not None:
            self.grammars.follow(seq)
        self.sequences.watch_deadline(seq)

    def take_awaited(self, seqs: list[Sequence], seq_ids: list[int], tokens: list[int]) -> None:
        """The first token that each of these decodes awaits; it may be its last."""
        indexes, block_size = self.events.token_indexes, self.manager.block_size
        self.events.token_seq_ids += seq_ids
        self.events.token_ids += tokens
        for seq, token in zip(seqs, tokens, strict=True):
            num_computed = seq.take(token)
            indexes.append(num_computed - seq.num_prompt_tokens)
            if num_computed % block_size == 0:
                self.manager.register_full_blocks(seq)
            if token in seq.end_ids or num_computed + 1 >= seq.max_num_tokens:
                reason = finish_reason(seq, token, self.info)
                if reason is not None:
                    self.finish(seq, reason)

    def take_token(self, seq: Sequence, token: int, logprobs: RowLogprobs | None) -> None:
        """The sequence's next output token; it may be its last."""
        events, seq_id = self.events, seq.request.seq_id
        events.token_seq_ids.append(seq_id)
        events.token_ids.append(token)
        events.token_indexes.append(seq.num_output_tokens)
        if logprobs is not None:
            report = TokenLogprobs(seq_id, seq.num_output_tokens, token, *logprobs)
            events.logprobs.append(report)
        seq.append(token)
        reason = finish_reason(seq, token, self.info)
        if reason is not None:
            self.finish(seq, reason)
        elif seq.request.kind == "prefill":
            self._hold(seq)

    def finish(self, seq: Sequence, reason: FinishReason, message: str = "") -> None:
        """The sequence ends by itself."""
        finished = Finished(seq.request.seq_id, reason, seq.num_output_tokens, message)
        self.events.finished.append(finished)
        if seq.request.kind == "prefill" and seq.state is SequenceState.RUNNING:
            self._hold(seq)
        else:
            self.drop(seq)

    def drop(self, seq: Sequence) -> None:
        """Forget the sequence, whatever its state, and give its blocks back."""
        self.scheduler.remove(seq)
        self.manager.free(seq)
        self.sequences.remove(seq)

    def _hold(self, seq: Sequence) -> None:
        """The front is still reading the blocks: keep them until it releases them."""
        self.scheduler.remove(seq)
        seq.state = SequenceState.HELD
