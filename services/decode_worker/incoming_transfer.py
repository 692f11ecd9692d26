"""One transfer as the decode worker sees it, from Prefill to Done or Abort.

The link to the prefill worker calls it with that transfer's frames; the handoff's coroutine waits
for the stages that it reaches. Its end takes effect in the call that brings it, whatever the
coroutine does then. Verification is the receiver's.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from baton.handoff.outcomes import DropCause
from baton.handoff.receiver import Receiver
from baton.handoff.ticket import BadBlocks, ForeignFrame, Ticket
from baton.handoff.transport import Pages, ReceivingEnd, num_payload_bytes
from baton.wire import failures
from baton.wire.engine_time import add_time
from baton.wire.v1 import failure_pb2, handoff_pb2
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from baton.worker.prompt import split_prompt
from baton.worker.stage_event import StageEvent

# A prefill worker with which nothing is wrong takes nothing new.
_REFUSALS = frozenset({"no_room", "overloaded", "draining"})


class BadData(failures.Unavailable):
    """Blocks of the transfer were wrong: asking for them again may help."""

    default_reason = "handoff_failed"


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """One Prefill: what the decode worker asks for. `message` has no prompt before it leaves.

    `spent` is what the prefill worker has told that it cost.
    """

    ticket: Ticket
    message: handoff_pb2.Prefill
    prompt_ids: bytes
    block_hashes: bytes
    spent: failure_pb2.EngineTime = field(default_factory=failure_pb2.EngineTime)

    def frames(self) -> Iterator[handoff_pb2.DecodeFrame]:
        """The Prefill with the beginning of its prompt, then the rest of the prompt."""
        deps = split_prompt(self.prompt_ids, self.block_hashes)
        self.message.prompt_ids, self.message.block_hashes = next(deps)
        yield handoff_pb2.DecodeFrame(prefill=self.message)
        for ids, hashes in deps:
            part = handoff_pb2.PrefillPart(
                xfer_id=self.ticket.xfer_id, prompt_ids=ids, block_hashes=hashes
            )
            yield handoff_pb2.DecodeFrame(prefill_part=part)


class Stage(IntEnum):
    """How far a transfer has come."""

    ASKED = 0
    ACCEPTED = 1  # the peer computes
    COMPUTED = 2  # the first tokens are known, maybe ahead of their blocks
    COMPLETE = 3  # every block is here and verified, or none will be needed


class IncomingTransfer:
    """State of one transfer. `request` is what was asked for.

    `on_consumed` is told of bytes that need no memory any more, `on_end` once of the end: complete
    (None), or why not.
    """

    def __init__(
        self,
        request: PrefillRequest,
        deps: WorkerDeps,
        on_consumed: Callable[[int], None],
        on_end: Callable[["IncomingTransfer", failures.BatonError | None], None],
    ) -> None:
        self.request = request
        # The peer's last word of it; None before the first, and once it was found late.
        self.heard_at: float | None = None
        self._deps = deps
        self._on_consumed = on_consumed
        self._on_end = on_end
        self._receiver = Receiver(request.ticket, deps.blocks, on_consumed, self._landed_late)
        # The transport's end that has brought blocks of it.
        self._end: ReceivingEnd | None = None
        self._progress = StageEvent()
        self._first_tokens: handoff_pb2.FirstTokens | None = None
        # Since when the prefill worker holds blocks that it has not told of; None = it holds none.
        self._held_since_s: float | None = None

    @property
    def ticket(self) -> Ticket:
        return self.request.ticket

    @property
    def is_ended(self) -> bool:
        return self._progress.stage == Stage.COMPLETE or self._progress.failure is not None

    @property
    def is_waiting_for_peer(self) -> bool:
        """The peer has computed, and it is the peer's turn: silence is suspicious."""
        return self._progress.stage == Stage.COMPUTED and self._receiver.is_bound

    @property
    def num_bytes_received(self) -> int:
        return self._receiver.num_bytes_received

    @property
    def is_on_device(self) -> bool:
        """The core has read its blocks: they did not come through the shared pool."""
        return self._end is not None and self._end.is_on_device

    # What the coroutine waits for. Each raises BatonError when the transfer failed before.

    async def accepted(self) -> None:
        """Compute starts now."""
        await self._progress.reach(Stage.ACCEPTED)

    async def first_tokens(self) -> handoff_pb2.FirstTokens:
        """The first tokens, at once, whether or not blocks are here."""
        await self._progress.reach(Stage.COMPUTED)
        assert self._first_tokens is not None
        return self._first_tokens

    async def complete(self) -> None:
        """Every block is here and verified, and the peer knows it."""
        await self._progress.reach(Stage.COMPLETE)

    def bind(self, bound: "asyncio.Future[list[int]]") -> None:
        """Write into these rows as soon as they are bound, and until the end."""
        bound.add_done_callback(self._bind)

    def end(self, error: failures.BatonError | None) -> None:
        """Nothing is written into the bound blocks any more, and the peer is told: done (None), or
        why not. Safe to call again."""
        if self.is_ended:
            return
        if error is None:
            self._progress.advance(Stage.COMPLETE)
        else:
            self._progress.fail(error)
        self._receiver.close()
        self._bill_held()
        if self._end is not None:
            self._end.end(self.ticket.xfer_id)
        self._on_end(self, error)

    # What the link tells.

    def lost(self, error: failures.BatonError) -> None:
        """The peer is gone, silent for too long, or takes no transfers."""
        self.end(_of_peer(error))

    def on_accepted(self, _: handoff_pb2.Accepted) -> None:
        self._held_since_s = self._deps.clock.now()
        self._progress.advance(Stage.ACCEPTED)

    def on_refused(self, refused: handoff_pb2.TransferRefused) -> None:
        self.lost(failures.from_wire(refused.failure))

    def on_spent(self, frame: handoff_pb2.Spent) -> None:
        add_time(self.request.spent, frame.engine)
        if self._held_since_s is not None:
            self._held_since_s = self._deps.clock.now()

    def on_first_tokens(self, frame: handoff_pb2.FirstTokens) -> None:
        if self._first_tokens is not None:
            return
        if fault := self._fault_of(frame):
            self.end(failures.Unavailable(fault, reason="handoff_failed"))
            return
        self._first_tokens = frame
        self._progress.advance(Stage.COMPUTED)
        if ended_at_once(frame):
            self.end(None)
        else:
            self._check_complete()

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
            instruments.HANDOFF_DROPPED_FRAMES.labels(DropCause.EPOCH).inc()
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
        self.end(failures.from_wire(frame.failure))

    def _bind(self, bound: "asyncio.Future[list[int]]") -> None:
        if self.is_ended or bound.cancelled():
            return
        try:
            self._receiver.bind(bound.result())
        except BadBlocks as error:
            self._fail_bad(error)
        else:
            self._check_complete()

    def _fault_of(self, frame: handoff_pb2.FirstTokens) -> str:
        """Why these first tokens are of no use; empty when they are."""
        # A beam search's first beams are the likeliest.
        forked = (fork.token_id for fork in frame.forks)
        largest = max([frame.token_id, *forked, *frame.logprobs.top_ids])
        vocab_size = self._deps.dispatcher.info.vocab_size
        if largest >= vocab_size:
            return f"first token {largest} is not below {vocab_size}"
        # A worker that knows no forks tells of none, and they go on from the leader's blocks: which
        # do not come when the leader has ended.
        num_received, num_wanted = len(frame.forks), len(self.request.message.fork_choices)
        if num_received != num_wanted and (num_received or frame.finish_reason):
            return f"first tokens of {num_received} further choices instead of {num_wanted}"
        sampling, first = self.request.message.sampling, frame.logprobs
        num_beams = max(1, sampling.num_choices) if sampling.use_beam_search else 0
        if num_beams and not len(first.top_ids) == len(first.top_logprobs) >= num_beams:
            return f"{len(first.top_ids)} likeliest tokens for {num_beams} beams"
        if num_beams and frame.finish_reason:
            return "a beam search that ended at its first token"
        return ""

    def _bill_held(self) -> None:
        """The prefill worker holds the prompt's blocks until the transfer ends, when it cannot tell
        any more."""
        if self._held_since_s is not None:
            held_ms = (self._deps.clock.now() - self._held_since_s) * 1000
            num_bytes = self.ticket.num_blocks * self._deps.blocks.spec.row_bytes
            self.request.spent.kv_byte_ms += round(num_bytes * held_ms)

    def _on_pages(
        self, frame: handoff_pb2.Blocks, pages: Pages | BadBlocks, transport: str
    ) -> None:
        """Take in a fetched frame; the transfer may have ended meanwhile."""
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
        if self._receiver.is_complete and self._first_tokens is not None:
            self.end(None)

    def _fail_bad(self, error: BadBlocks) -> None:
        instruments.HANDOFF_BAD_BLOCKS.labels(error.cause).inc()
        self.end(BadData(f"bad KV blocks: {error}"))


def ended_at_once(frame: handoff_pb2.FirstTokens) -> bool:
    """The first token of every choice was its last: no blocks follow."""
    return bool(frame.finish_reason) and all(fork.finish_reason for fork in frame.forks)


def _of_peer(error: failures.BatonError) -> failures.BatonError:
    """The prefill worker's failure, named as such: the gateway must not blame this worker. What the
    client did, a deadline, or two workers that cannot work together stay what they are."""
    if not error.row.retryable or error.reason == "incompatible":
        return error
    reason = "prefill_refused" if error.reason in _REFUSALS else "handoff_failed"
    return failures.Unavailable(error.message, reason=reason, is_suspect=error.is_suspect)
