"""One transfer as the decode worker sees it, from Prefill to Done or Abort.

The link to the prefill worker calls it with that transfer's frames; it tells its owner (a choice of
an attempt) the four things that matter. Verification is the receiver's.
"""

from collections.abc import Callable
from typing import Protocol

from baton.handoff.receiver import Receiver
from baton.handoff.ticket import BadBlocks, ForeignFrame, Ticket
from baton.handoff.transport import Pages, ReceivingEnd, num_payload_bytes
from baton.wire import failures
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.parts import WorkerParts

# A prefill worker with which nothing is wrong takes nothing new.
_REFUSALS = frozenset({"no_room", "overloaded", "draining"})


class TransferOwner(Protocol):
    """What a transfer leads to. After `on_complete` or `on_failed` nothing more comes."""

    def on_accepted(self) -> None:
        """Compute starts now: bind blocks."""

    def on_first_token(self, frame: handoff_pb2.FirstTokens) -> None:
        """The first token, ahead of its blocks."""

    def on_complete(self) -> None:
        """Every block is here and verified, and the first token is known."""

    def on_failed(self, error: failures.BatonError, *, is_bad_data: bool) -> None:
        """It cannot be completed. `is_bad_data`: blocks were wrong, asking again may help."""


class DecodeTransfer:
    """State of one transfer. `prefill` is the request as it leaves, without its prompt."""

    def __init__(
        self,
        ticket: Ticket,
        prefill: handoff_pb2.Prefill,
        owner: TransferOwner,
        parts: WorkerParts,
        on_consumed: Callable[[int], None],
    ) -> None:
        self.ticket = ticket
        self.prefill = prefill
        self.is_ended = False
        self.has_first_token = False
        self._owner = owner
        self._vocab_size = parts.dispatcher.info.vocab_size
        self._on_consumed = on_consumed
        self._receiver = Receiver(ticket, parts.blocks, on_consumed, self._landed_late)
        # Which has brought blocks of it.
        self._end: ReceivingEnd | None = None

    @property
    def is_waiting_for_peer(self) -> bool:
        """The peer has computed, and it is the peer's turn: silence is suspicious."""
        return self.has_first_token and self._receiver.is_bound

    @property
    def num_bytes_received(self) -> int:
        return self._receiver.num_bytes_received

    @property
    def is_on_device(self) -> bool:
        """The core has read its blocks: they did not come through the shared pool."""
        return self._end is not None and self._end.is_on_device

    def bind(self, block_ids: list[int]) -> None:
        """The blocks to write into. They stay bound until `end`."""
        try:
            self._receiver.bind(block_ids)
        except BadBlocks as error:
            self._fail_bad(error)
            return
        self._check_complete()

    def on_accepted(self) -> None:
        self._owner.on_accepted()

    def on_refused(self, refused: handoff_pb2.TransferRefused) -> None:
        self.on_lost(failures.from_wire(refused.failure))

    def on_first_tokens(self, frame: handoff_pb2.FirstTokens) -> None:
        if self.has_first_token:
            return
        if fault := self._fault_of(frame):
            error = failures.Unavailable(fault, reason="handoff_failed")
            self._owner.on_failed(error, is_bad_data=False)
            return
        self.has_first_token = True
        self._owner.on_first_token(frame)
        if not self.is_ended:
            self._check_complete()

    def _fault_of(self, frame: handoff_pb2.FirstTokens) -> str:
        """Why these first tokens are of no use; empty when they are."""
        # A beam search's first beams are the likeliest.
        forked = (fork.token_id for fork in frame.forks)
        largest = max([frame.token_id, *forked, *frame.logprobs.top_ids])
        if largest >= self._vocab_size:
            return f"first token {largest} is not below {self._vocab_size}"
        # A worker that knows no forks tells of none, and they go on from the leader's blocks: which
        # do not come when the leader has ended.
        num_told, num_wanted = len(frame.forks), len(self.prefill.fork_choices)
        if num_told != num_wanted and (num_told or frame.finish_reason):
            return f"first tokens of {num_told} further choices instead of {num_wanted}"
        sampling, told = self.prefill.sampling, frame.logprobs
        num_beams = max(1, sampling.num_choices) if sampling.use_beam_search else 0
        if num_beams and not len(told.top_ids) == len(told.top_logprobs) >= num_beams:
            return f"{len(told.top_ids)} likeliest tokens for {num_beams} beams"
        return ""

    def on_blocks(self, frame: handoff_pb2.Blocks, end: ReceivingEnd) -> None:
        """A frame, whose pages are to be had from `end`."""
        try:
            self._receiver.check(frame)
        except ForeignFrame as error:
            instruments.HANDOFF_DROPPED_FRAMES.labels(error.cause).inc()
            self._on_consumed(num_payload_bytes(frame))
        except BadBlocks as error:
            self._on_consumed(num_payload_bytes(frame))
            self._fail_bad(error)
        else:
            self._end = end
            end.fetch(frame, lambda pages: self._on_pages(frame, pages, end.name))

    def on_commit(self, frame: handoff_pb2.Commit) -> None:
        if frame.epoch != self.ticket.epoch:
            instruments.HANDOFF_DROPPED_FRAMES.labels("epoch").inc()
            return
        try:
            self._receiver.commit(frame)
        except BadBlocks as error:
            self._fail_bad(error)
        else:
            self._check_complete()

    def on_aborted(self, frame: handoff_pb2.TransferAbort) -> None:
        try:
            self.ticket.check_capability(frame.capability)
        except ForeignFrame as error:
            instruments.HANDOFF_DROPPED_FRAMES.labels(error.cause).inc()
            return
        self._owner.on_failed(failures.from_wire(frame.failure), is_bad_data=False)

    def on_lost(self, error: failures.BatonError) -> None:
        """The peer is gone, silent for too long, or takes no transfers."""
        self._owner.on_failed(_of_peer(error), is_bad_data=False)

    def end(self) -> None:
        """Nothing is written into the bound blocks any more."""
        self.is_ended = True
        self._receiver.close()
        if self._end is not None:
            self._end.end(self.ticket.xfer_id)

    def _on_pages(
        self, frame: handoff_pb2.Blocks, pages: Pages | BadBlocks, transport: str
    ) -> None:
        """What was fetched; the transfer may have ended meanwhile."""
        if isinstance(pages, BadBlocks):
            self._on_consumed(num_payload_bytes(frame))
            if not self.is_ended:
                self._fail_bad(pages)
            return
        instruments.HANDOFF_BYTES.labels("received", transport).inc(num_payload_bytes(frame))
        try:
            self._receiver.take(frame, pages)
        except BadBlocks as error:
            self._fail_bad(error)
        else:
            if not self.is_ended:
                self._check_complete()

    def _landed_late(self, fault: BadBlocks | None) -> None:
        self._on_consumed(0)  # their credit was given back at once, but the peer has delivered
        if fault is None:
            self._check_complete()
        else:
            self._fail_bad(fault)

    def _check_complete(self) -> None:
        if self._receiver.is_complete and self.has_first_token:
            self._owner.on_complete()

    def _fail_bad(self, error: BadBlocks) -> None:
        instruments.HANDOFF_BAD_BLOCKS.labels(error.cause).inc()
        failure = failures.Unavailable(f"bad KV blocks: {error}", reason="handoff_failed")
        self._owner.on_failed(failure, is_bad_data=True)


def _of_peer(error: failures.BatonError) -> failures.BatonError:
    """The prefill worker's failure, named as such: the gateway must not blame this worker. What the
    client did, a deadline, or two workers that cannot work together stay what they are."""
    if not error.row.retryable or error.reason == "incompatible":
        return error
    reason = "prefill_refused" if error.reason in _REFUSALS else "handoff_failed"
    return failures.Unavailable(error.message, reason=reason, is_suspect=error.is_suspect)
