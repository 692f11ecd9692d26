"""One transfer as the prefill worker sees it: queue, compute, send, hold until the peer is done.

    Prefill -> queued -> (Started) computing -> (first token) sending -> (Commit) held -> ended

Listens to the engine's sequence, whose blocks these are; a session's coroutine follows it and frees
them. Knows no streams and no leases.
"""

from dataclasses import dataclass
from enum import IntEnum

from opentelemetry.trace import SpanKind

from baton.engine.protocol.messages import (
    AddSequence,
    Finished,
    Fork,
    Progress,
    SamplingParams,
    SequenceRefused,
    Started,
    TokenLogprobs,
)
from baton.handoff.outcomes import TransferOutcome
from baton.handoff.sender import Sender
from baton.handoff.ticket import Ticket
from baton.handoff.transport import SendingEnd
from baton.runtime.telemetry import Span, StageTimer, start_span
from baton.wire import failures
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import failure_pb2, handoff_pb2
from baton.worker.cancels import Phase
from baton.worker.deps import WorkerDeps
from baton.worker.dispatch import SequenceEvent, SequenceListener, sequence_failure, to_wire
from baton.worker.stage_event import StageEvent

_COMPLETE = ("stop", "length")


class Stage(IntEnum):
    """How far a transfer has come."""

    QUEUED = 0
    STARTED = 1  # its blocks are there
    COMPUTED = 2  # its first tokens are known


# By stage.
_PHASES = (Phase.QUEUE, Phase.PREFILL, Phase.HANDOFF)


class TransferEnded(Exception):
    """A transfer is over, and nothing of it is freed yet.

    The peer brings COMPLETE, ABORTED and LOST; the other outcomes have an `error`, which the peer
    has to be told.
    """

    def __init__(self, outcome: TransferOutcome, error: failures.BatonError | None = None) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.error = error


@dataclass(frozen=True, slots=True)
class PrefillOrder:
    """A whole Prefill. `token_ids` are the prompt's and those of earlier attempts."""

    request: handoff_pb2.Prefill
    token_ids: bytes
    block_hashes: bytes
    sampling: SamplingParams

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def num_emitted(self) -> int:
        return len(self.request.emitted_ids) // TOKEN_BYTES


class _ForkToken:
    """Listens for the first token of a further choice of the same prompt."""

    def __init__(self) -> None:
        self.wire = handoff_pb2.ForkToken()

    def on_event(self, event: SequenceEvent) -> None:
        if isinstance(event, Finished) and event.reason in _COMPLETE:
            self.wire.finish_reason = event.reason

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        self.wire.token_id = token_id
        if logprobs is not None:
            self.wire.logprobs.CopyFrom(to_wire(logprobs))


class OutgoingTransfer:
    """Listens to one prefill sequence, and to the first tokens of its forks."""

    def __init__(self, order: PrefillOrder, deps: WorkerDeps, sending: SendingEnd) -> None:
        """Raises InvalidRequest."""
        request = order.request
        self.ticket = Ticket(
            request.xfer_id,
            request.request_id,
            request.epoch,
            request.capability,
            request.first_missing_block,
            deps.blocks.spec.num_blocks_for(order.num_tokens),
        )
        if self.ticket.num_missing_blocks < 0:
            raise failures.InvalidRequest(
                f"first_missing_block {request.first_missing_block} is behind the prompt's end"
            )
        # The sequence's and its forks', once started.
        self.seq_ids: list[int] = []
        self.sender: Sender | None = None
        self._order = order
        self._deps = deps
        self._sending = sending
        self._progress = StageEvent()
        self._timer = StageTimer(deps.clock)
        self._span: Span | None = None
        # Filled as the engine tells it.
        self._first = handoff_pb2.FirstTokens(xfer_id=request.xfer_id)
        self._forks = [_ForkToken() for _ in request.fork_choices]

    @property
    def request_id(self) -> str:
        return self.ticket.request_id

    @property
    def is_computed(self) -> bool:
        """The first tokens are known."""
        return self._progress.stage >= Stage.COMPUTED

    @property
    def is_over(self) -> bool:
        """Nothing of it leaves any more; it is about to be freed."""
        return self._progress.failure is not None

    @property
    def phase(self) -> Phase:
        return _PHASES[self._progress.stage]

    @property
    def needs_no_blocks(self) -> bool:
        """Every choice ended with its first token."""
        ended = [self._first.finish_reason, *(fork.wire.finish_reason for fork in self._forks)]
        return all(ended)

    def start(self) -> None:
        """Queue the sequence at the engine."""
        order, request, dispatcher = self._order, self._order.request, self._deps.dispatcher
        now = self._deps.clock.now()
        listeners: list[SequenceListener] = [self, *self._forks]
        self.seq_ids = [dispatcher.open(each, request.request_id) for each in listeners]
        dispatcher.send(
            AddSequence(
                seq_id=self.seq_ids[0],
                request_id=request.request_id,
                choice=request.choice,
                kind="prefill",
                token_ids=order.token_ids,
                num_emitted=order.num_emitted,
                block_hashes=order.block_hashes,
                cache_key=request.cache_key,
                sampling=order.sampling,
                credit=order.num_emitted + 1,
                priority=request.priority,
                deadline=now + request.deadline_ms / 1000 if request.deadline_ms else None,
                forks=tuple(map(Fork, self.seq_ids[1:], request.fork_choices)),
                is_suspect=request.is_suspect,
                is_quiet=request.is_quiet,
                adapter=request.adapter,
                checksum_every=self._sending.checksum_every,
                num_peer_blocks=request.first_missing_block,
            )
        )

    def bill(self) -> failure_pb2.EngineTime:
        """What it cost since the last call; it counts as billed. All of it is prefill."""
        dispatcher = self._deps.dispatcher
        bill = dispatcher.bill(dispatcher.times.take(self.seq_ids[0]))
        bill.prefill_us, bill.decode_us = bill.prefill_us + bill.decode_us, 0
        return bill

    # What the coroutine waits for. Each raises TransferEnded.

    async def started(self) -> None:
        """Compute has started; the blocks are there."""
        await self._progress.reach(Stage.STARTED)

    async def news(self) -> None:
        """More blocks are final, or the first tokens are known."""
        await self._progress.news()

    async def over(self) -> None:
        """Never returns: the end raises."""
        while True:
            await self._progress.news()

    def take_first_tokens(self) -> handoff_pb2.FirstTokens:
        """The frame that leaves at once; afterwards the rest of the blocks may leave."""
        assert self.is_computed
        assert self.sender is not None
        if not self.needs_no_blocks:
            self.sender.finish()
        self._first.forks.extend(fork.wire for fork in self._forks)
        self._first.stages.extend(self._timer.to_wire())
        return self._first

    # What ends it.

    def end(self, outcome: TransferOutcome) -> None:
        """The peer is done, wants no more of it, or is gone."""
        self._progress.fail(TransferEnded(outcome))
        self._end_span(outcome, None)

    def fail(self, error: failures.BatonError) -> None:
        """It cannot go on."""
        is_started = self._progress.stage >= Stage.STARTED
        outcome = TransferOutcome.FAILED if is_started else TransferOutcome.REFUSED
        self._progress.fail(TransferEnded(outcome, error))
        self._end_span(outcome, error)

    def expire(self) -> None:
        """The peer has not renewed the lease: it is told, should it live."""
        error = failures.Unavailable("the lease ran out", reason="handoff_failed")
        self._progress.fail(TransferEnded(TransferOutcome.EXPIRED, error))
        self._end_span(TransferOutcome.EXPIRED, error)

    # What the engine tells (SequenceListener).

    def on_event(self, event: SequenceEvent) -> None:
        match event:
            case Started():
                self._on_started(event)
            case Progress():
                assert self.sender is not None
                self.sender.add_checksums(event.checksums)
                self.sender.advance(event.num_computed_tokens, event.num_layers)
                self._progress.advance(Stage.STARTED)
            case SequenceRefused(reason=reason, message=message):
                self.fail(sequence_failure(reason, message))
            case Finished(reason=reason) if reason in _COMPLETE and self.is_computed:
                self._first.finish_reason = reason
            case Finished(reason=reason, message=message):
                message = message or f"prefill ended: {reason}"
                self.fail(sequence_failure(reason, message))

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        assert not self.is_computed, "a prefill samples one token"
        self._first.token_id = token_id
        if logprobs is not None:
            self._first.logprobs.CopyFrom(to_wire(logprobs))
        self._end_stage("prefill.compute")
        # What else the step brings, such as the ends, comes before the coroutine goes on.
        self._progress.advance(Stage.COMPUTED)

    def _on_started(self, event: Started) -> None:
        deps, num_cached_tokens = self._deps, event.num_cached_tokens
        self._first.num_cached_tokens = num_cached_tokens
        self._end_stage("prefill.queue")
        deps.metrics.took_prompt(self._order.num_tokens, num_cached_tokens)
        self.sender = Sender(self.ticket, event.rows, deps.blocks, self._sending)
        self._progress.advance(Stage.STARTED)

    def _end_stage(self, name: str) -> None:
        start_s = self._timer.started_s + self._timer.wall_s
        self._timer.mark(name)
        if self._span is None:
            self._span = self._start_span()
        start_span(name, parent=self._span, request_id=self.request_id, start_s=start_s).end()

    def _start_span(self) -> Span:
        """The span of this side of the handoff. There is none before it has room."""
        return start_span(
            "prefill",
            traceparent=self._order.request.traceparent,
            request_id=self.request_id,
            start_s=self._timer.started_s,
            kind=SpanKind.SERVER,
            attributes={
                "baton.worker_id": self._deps.worker_id,
                "baton.epoch": self.ticket.epoch,
                "baton.num_tokens": self._order.num_tokens,
                "baton.num_cached_tokens": self._first.num_cached_tokens,
            },
        )

    def _end_span(self, outcome: TransferOutcome, error: failures.BatonError | None) -> None:
        if self._span is None:
            return
        self._span.set("baton.outcome", outcome)
        self._span.close(type(error) if error is not None else None, error)
        self._span = None
