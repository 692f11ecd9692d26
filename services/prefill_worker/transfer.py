"""One transfer as the prefill worker sees it: queue, compute, send, hold until the peer is done.

    Prefill -> queued -> (Started) computing -> (first token) sending -> (Commit) held -> ended

Its blocks belong to the engine's sequence, which the session releases or aborts at the end. Knows
no streams and no leases.
"""

from typing import Protocol

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
from baton.handoff.sender import Sender
from baton.handoff.ticket import Ticket
from baton.handoff.transport import SendingEnd
from baton.runtime.telemetry import Span, start_span
from baton.wire import failures
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import failure_pb2, handoff_pb2, worker_pb2
from baton.worker.dispatch import SequenceEvent, SequenceListener, sequence_failure, to_wire
from baton.worker.parts import WorkerParts

_COMPLETE = ("stop", "length")


class TransferOutlet(Protocol):
    """What a transfer tells its session."""

    def accepted(self, transfer: "PrefillTransfer") -> None:
        """Compute has started; the blocks are there."""

    def failed(self, transfer: "PrefillTransfer", error: failures.BatonError) -> None:
        """It cannot go on; nothing was released yet."""

    def sampled(self, transfer: "PrefillTransfer") -> None:
        """The first token is there: call `end_of_step` when the whole step is dispatched."""

    def blocks_ready(self, transfer: "PrefillTransfer") -> None:
        """Its sender has frames."""


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


class PrefillTransfer:
    """Listens to one prefill sequence, and to the first tokens of its forks."""

    def __init__(
        self,
        request: handoff_pb2.Prefill,
        token_ids: bytes,
        parts: WorkerParts,
        outlet: TransferOutlet,
        sending: SendingEnd,
    ) -> None:
        num_tokens = len(token_ids) // TOKEN_BYTES
        self.ticket = Ticket(
            request.xfer_id,
            request.request_id,
            request.epoch,
            request.capability,
            request.first_missing_block,
            parts.blocks.spec.num_blocks_for(num_tokens),
        )
        if self.ticket.num_missing_blocks < 0:
            raise failures.InvalidRequest(
                f"first_missing_block {request.first_missing_block} is behind the prompt's end"
            )
        # The sequence's and its forks', once started.
        self.seq_ids: list[int] = []
        self.sender: Sender | None = None
        self.first_token: int | None = None
        self._logprobs: worker_pb2.TokenLogprobs | None = None
        self._finish_reason = ""
        self._forks = [_ForkToken() for _ in request.fork_choices]
        self._token_ids = token_ids
        self._request = request
        self._parts = parts
        self._outlet = outlet
        self._sending = sending
        self._queued_s = self._started_s = parts.clock.now()
        self._num_cached_tokens = 0

    @property
    def request_id(self) -> str:
        return self.ticket.request_id

    @property
    def is_started(self) -> bool:
        return self.sender is not None

    @property
    def phase(self) -> str:
        """Where it is: "queue", "prefill" or "handoff"."""
        if self.first_token is not None:
            return "handoff"
        return "prefill" if self.is_started else "queue"

    @property
    def needs_no_blocks(self) -> bool:
        """Every choice ended with its first token."""
        return bool(self._finish_reason) and all(fork.wire.finish_reason for fork in self._forks)

    def start(self, block_hashes: bytes, sampling: SamplingParams) -> None:
        """Queue the sequence at the engine."""
        request, dispatcher = self._request, self._parts.dispatcher
        now = self._parts.clock.now()
        num_emitted = len(request.emitted_ids) // TOKEN_BYTES
        listeners: list[SequenceListener] = [self, *self._forks]
        self.seq_ids = [dispatcher.open(each, request.request_id) for each in listeners]
        dispatcher.send(
            AddSequence(
                seq_id=self.seq_ids[0],
                request_id=request.request_id,
                choice=request.choice,
                kind="prefill",
                token_ids=self._token_ids,
                num_emitted=num_emitted,
                block_hashes=block_hashes,
                cache_key=request.cache_key,
                sampling=sampling,
                credit=num_emitted + 1,
                priority=request.priority,
                deadline=now + request.deadline_ms / 1000 if request.deadline_ms else None,
                forks=tuple(map(Fork, self.seq_ids[1:], request.fork_choices)),
                is_suspect=request.is_suspect,
                checksum_every=self._sending.checksum_every,
            )
        )

    def on_event(self, event: SequenceEvent) -> None:
        match event:
            case Started():
                self._on_started(event)
            case Progress(num_computed_tokens=num_tokens, checksums=checksums):
                assert self.sender is not None
                self.sender.add_checksums(checksums)
                self.sender.advance(num_tokens)
                self._outlet.blocks_ready(self)
            case SequenceRefused(reason=reason, message=message):
                self._outlet.failed(self, sequence_failure(reason, message))
            case Finished(reason=reason) if reason in _COMPLETE and self.first_token is not None:
                self._finish_reason = reason
            case Finished(reason=reason, message=message):
                message = message or f"prefill ended: {reason}"
                self._outlet.failed(self, sequence_failure(reason, message))

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        assert self.first_token is None, "a prefill samples one token"
        self.first_token = token_id
        self._logprobs = None if logprobs is None else to_wire(logprobs)
        self._outlet.sampled(self)

    def end_of_step(self) -> handoff_pb2.FirstTokens:
        """What the decode worker gets at once; afterwards the rest of the blocks may leave."""
        assert self.first_token is not None
        assert self.sender is not None
        now = self._parts.clock.now()
        self._span("prefill.compute", self._started_s).end()
        if not self.needs_no_blocks:
            self.sender.finish()
            self._outlet.blocks_ready(self)
        return handoff_pb2.FirstTokens(
            xfer_id=self.ticket.xfer_id,
            token_id=self.first_token,
            logprobs=self._logprobs,
            num_cached_tokens=self._num_cached_tokens,
            finish_reason=self._finish_reason,
            forks=[fork.wire for fork in self._forks],
            stages=[
                _stage("prefill.queue", self._started_s - self._queued_s),
                _stage("prefill.compute", now - self._started_s),
            ],
        )

    def _on_started(self, event: Started) -> None:
        parts = self._parts
        self._started_s = parts.clock.now()
        self._span("prefill.queue", self._queued_s).end()
        self._num_cached_tokens = event.num_cached_tokens
        num_tokens = len(self._token_ids) // TOKEN_BYTES
        parts.metrics.took_prompt(num_tokens, event.num_cached_tokens)
        self.sender = Sender(self.ticket, event.block_ids, parts.blocks, self._sending)
        self._outlet.accepted(self)
        if parts.dispatcher.info.device_pool is not None:
            return  # cached blocks get ready, or their checksums, with the first step
        self.sender.advance(event.num_cached_tokens)
        self._outlet.blocks_ready(self)

    def _span(self, name: str, start_s: float) -> Span:
        return start_span(
            name,
            traceparent=self._request.traceparent,
            request_id=self.request_id,
            start_s=start_s,
            attributes={
                "baton.worker_id": self._parts.worker_id,
                "baton.num_tokens": len(self._token_ids) // TOKEN_BYTES,
                "baton.num_cached_tokens": self._num_cached_tokens,
            },
        )


def _stage(name: str, seconds: float) -> failure_pb2.StageTime:
    return failure_pb2.StageTime(name=name, duration_us=round(seconds * 1e6))
