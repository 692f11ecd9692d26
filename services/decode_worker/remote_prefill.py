"""The prefill of one choice by another worker: ticket, Prefill, blocks, and one second try.

Blocks that fail verification are asked for once more from the same prefill worker, into the same
bound blocks, under a new ticket and by the plain transport; the first token is kept once it is
known, because the gateway has it already. Knows no engine commands: the choice sends them.
"""

from typing import Protocol

from baton.handoff.ticket import Ticket, new_capability
from baton.runtime import logs
from baton.runtime.telemetry import Span, start_span
from baton.wire import failures
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.parts import WorkerParts
from services.decode_worker.attempt_request import AttemptRequest
from services.decode_worker.prefill_link import PrefillLink, PrefillLinks
from services.decode_worker.transfer import DecodeTransfer

MAX_TRIES = 2

_log = logs.get("decode_worker.remote_prefill")


class RemotePrefillOwner(Protocol):
    """The choice. After `prefill_complete` or `prefill_failed` nothing more comes."""

    choice: int

    @property
    def fork_choices(self) -> list[int]:
        """Choices whose first tokens shall come with its own."""

    def bind_blocks(self) -> None:
        """Compute starts: the promised blocks are needed now."""

    def first_token(self, frame: handoff_pb2.FirstTokens, num_blocks: int) -> None:
        """Known ahead of its `num_blocks` blocks. The owner may `end` the prefill in here."""

    def prefill_complete(self, frame: handoff_pb2.FirstTokens, *, is_on_device: bool) -> None:
        """All blocks are filled and verified; nothing is written into them any more.

        `frame` is the one that told the first token. `is_on_device`: as in Start.
        """

    def prefill_failed(self, error: failures.BatonError) -> None: ...


class RemotePrefill:
    """From the promise (`num_cached_blocks` are here already) to filled blocks."""

    def __init__(
        self,
        request: AttemptRequest,
        owner: RemotePrefillOwner,
        num_cached_blocks: int,
        parts: WorkerParts,
        links: PrefillLinks,
    ) -> None:
        self._request = request
        self._owner = owner
        self._parts = parts
        self._links = links
        self._num_cached_blocks = num_cached_blocks
        self._block_ids: list[int] | None = None
        self._is_bind_sent = False
        self._first_tokens: handoff_pb2.FirstTokens | None = None
        # When the first token came, and the bytes that were here: the rest is pure transfer.
        self._first_token_at = 0.0
        self._num_tries = 0
        self._transfer: DecodeTransfer | None = None
        self._link: PrefillLink | None = None
        self._span: Span | None = None

    def ask(self, attempt_span: Span) -> None:
        """Send the Prefill. Raises BatonError when no link can take it."""
        submit = self._request.submit
        if self._span is None:
            self._span = start_span(
                "handoff",
                parent=attempt_span,
                request_id=submit.request_id,
                attributes={
                    "baton.prefill_endpoint": submit.prefill_endpoint,
                    "baton.choice": self._owner.choice,
                    "baton.num_cached_blocks": self._num_cached_blocks,
                },
            )
        self._num_tries += 1
        link = self._link = self._links.get(submit.prefill_endpoint)
        ticket = self._new_ticket()
        transfer = DecodeTransfer(
            ticket, self._prefill_message(ticket), self, self._parts, link.consumed
        )
        self._transfer = transfer
        if self._block_ids is not None:
            transfer.bind(self._block_ids)
        link.open(transfer, self._request.prompt_ids, self._request.block_hashes)

    def bound(self, block_ids: list[int]) -> None:
        """The engine has bound the whole block table."""
        self._block_ids = block_ids
        assert self._transfer is not None
        self._transfer.bind(block_ids)

    def end(self, error: failures.BatonError | None) -> None:
        """Close the transfer on both sides; afterwards no byte is written. Safe to call again."""
        if self._transfer is not None and self._link is not None:
            self._link.end(self._transfer, error)
        if self._span is not None:
            if error is not None:
                self._span.fail(error.reason)
            self._span.end()
            self._span = None

    # What the transfer tells (TransferOwner).

    def on_accepted(self) -> None:
        if not self._is_bind_sent:
            self._is_bind_sent = True
            self._owner.bind_blocks()

    def on_first_token(self, frame: handoff_pb2.FirstTokens) -> None:
        if self._first_tokens is not None:
            return
        self._first_tokens = frame
        if self._num_tries > 1:
            frame.num_cached_tokens = 0  # an earlier try computed them for this request
        assert self._transfer is not None
        self._first_token_at = self._parts.clock.now()
        num_blocks = 0 if ended_at_once(frame) else self._transfer.ticket.num_missing_blocks
        self._owner.first_token(frame, num_blocks)

    def on_complete(self) -> None:
        assert self._transfer is not None
        assert self._link is not None
        assert self._first_tokens is not None
        num_blocks = self._transfer.ticket.num_missing_blocks
        instruments.HANDOFF_BLOCKS.labels("received").inc(num_blocks)
        if self._span is not None:
            self._span.set("baton.num_blocks_received", num_blocks)
            self._span.set("baton.num_bytes_received", self._transfer.num_bytes_received)
            self._span.set("baton.transport", self._link.transport)
        tail_s = self._parts.clock.now() - self._first_token_at
        self._links.observe_rate(self._transfer.num_bytes_received, tail_s)
        self.end(None)
        is_on_device = self._transfer.is_on_device
        self._owner.prefill_complete(self._first_tokens, is_on_device=is_on_device)

    def on_failed(self, error: failures.BatonError, *, is_bad_data: bool) -> None:
        submit = self._request.submit
        _log.warning(
            "handoff_failed",
            request_id=submit.request_id,
            endpoint=submit.prefill_endpoint,
            detail=error.log_detail,
        )
        if not is_bad_data or self._num_tries >= MAX_TRIES:
            self._owner.prefill_failed(error)
            return
        assert self._transfer is not None
        assert self._link is not None
        self._link.end(self._transfer, error)
        self._link.distrust_transport()
        try:
            self._retry()
        except failures.BatonError as refusal:
            self._owner.prefill_failed(refusal)

    def _retry(self) -> None:
        assert self._span is not None
        self._span.set("baton.num_tries", self._num_tries + 1)
        self.ask(self._span)

    def _new_ticket(self) -> Ticket:
        request, spec = self._request, self._parts.blocks.spec
        num_emitted = len(request.emitted_ids(self._owner.choice)) // TOKEN_BYTES
        return Ticket(
            xfer_id=self._links.next_xfer_id(),
            request_id=request.request_id,
            epoch=request.submit.epoch,
            capability=new_capability(self._parts.random_bytes),
            first_missing_block=self._num_cached_blocks,
            num_blocks=spec.num_blocks_for(request.num_prompt_tokens + num_emitted),
        )

    def _prefill_message(self, ticket: Ticket) -> handoff_pb2.Prefill:
        """The Prefill without its prompt, which the link splits over frames."""
        request, submit = self._request, self._request.submit
        assert self._span is not None
        left_s = 0.0
        if request.deadline_s is not None:
            left_s = max(request.deadline_s - self._parts.clock.now(), 0.001)
        return handoff_pb2.Prefill(
            xfer_id=ticket.xfer_id,
            request_id=ticket.request_id,
            epoch=ticket.epoch,
            choice=self._owner.choice,
            capability=ticket.capability,
            num_prompt_tokens=request.num_prompt_tokens,
            cache_key=submit.cache_key,
            first_missing_block=ticket.first_missing_block,
            sampling=submit.sampling,
            emitted_ids=request.emitted_ids(self._owner.choice),
            deadline_ms=round(left_s * 1000),
            traceparent=self._span.traceparent,
            priority=submit.priority,
            fork_choices=self._owner.fork_choices,
            is_suspect=submit.is_suspect,
        )


def ended_at_once(frame: handoff_pb2.FirstTokens) -> bool:
    """The first token of every choice was its last: no blocks follow."""
    return bool(frame.finish_reason) and all(fork.finish_reason for fork in frame.forks)
