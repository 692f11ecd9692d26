"""One handoff from the decode worker's side, as a coroutine: another worker prefills the prompt.

Blocks that fail verification are asked for once more from the same prefill worker, into the same
bound blocks, under a new ticket and by the plain transport; the first token is kept once it is
known, because the gateway has it already. Knows no engine commands: the choice sends them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from opentelemetry.trace import SpanKind

from baton.handoff.ticket import Ticket, new_capability
from baton.runtime import logs
from baton.runtime.telemetry import Span, start_span
from baton.wire import failures
from baton.wire.v1 import failure_pb2, handoff_pb2
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from services.decode_worker.attempt_output import AttemptOutput
from services.decode_worker.incoming_transfer import (
    BadData,
    IncomingTransfer,
    PrefillRequest,
    ended_at_once,
)
from services.decode_worker.prefill_link import PrefillLink
from services.decode_worker.prefill_links import PrefillLinks

MAX_TRIES = 2

_log = logs.get("decode_worker.remote_prefill")

# Asks the engine to bind the promised blocks, and for rows or, on the device, for the blocks.
BindBlocks = Callable[[bool], None]
# Gets the first tokens of all choices, and the number of blocks that come with them.
OnFirst = Callable[[handoff_pb2.FirstTokens, int], None]


class Prefilled(NamedTuple):
    """A prompt whose blocks are filled and verified; nothing is written into them any more."""

    first_tokens: handoff_pb2.FirstTokens
    is_on_device: bool  # as in Start


class RemotePrefill:
    """One handoff. `start` a task that awaits `run`; `cancel` ends it at once, from outside."""

    def __init__(
        self,
        output: AttemptOutput,
        choice: int,
        fork_choices: Sequence[int],
        deps: WorkerDeps,
        links: PrefillLinks,
    ) -> None:
        # What the prefill worker has told that it cost.
        self.spent = failure_pb2.EngineTime()
        # The rows that the engine has told and will tell, in the order in which they were wanted.
        self._bound: list[asyncio.Future[list[int]]] = []
        self._request = output.request
        self._attempt_span = output.span
        self._choice = choice
        self._fork_choices = fork_choices
        self._deps = deps
        self._links = links
        self._span: Span | None = None
        self._transfer: IncomingTransfer | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, handing_over: Coroutine[Any, Any, None]) -> None:
        """Run the choice's coroutine, which awaits `run`."""
        self._task = self._links.start(handing_over)

    def cancel(self, error: failures.BatonError) -> None:
        """It is not wanted any more: when this returns, no byte is written into its blocks."""
        self._close(error)
        if self._task is not None:
            self._task.cancel()

    def take_rows(self, rows: list[int]) -> None:
        """The engine has bound what `bind` asked for."""
        next(bound for bound in self._bound if not bound.done()).set_result(rows)

    async def run(self, num_cached_blocks: int, bind: BindBlocks, on_first: OnFirst) -> Prefilled:
        """From the promise (`num_cached_blocks` are here already) to filled blocks.

        `bind` is called when compute starts, and again for a second try that comes another way;
        `on_first` once, as soon as the first tokens are known, before or after the blocks are
        bound. Raises BatonError.
        """
        self._span = self._start_span(num_cached_blocks)
        try:
            prefilled = await self._prefill(num_cached_blocks, bind, on_first)
            self._close(None)
            return prefilled
        except failures.BatonError as error:
            self._close(error)
            raise
        except BaseException:
            self._close(failures.Cancelled("the handoff was given up"))
            raise

    async def _prefill(
        self, num_cached_blocks: int, bind: BindBlocks, on_first: OnFirst
    ) -> Prefilled:
        is_on_device: bool | None = None
        first: handoff_pb2.FirstTokens | None = None
        first_s = 0.0
        for number in range(1, MAX_TRIES + 1):
            link = self._links.get(self._request.submit.prefill_endpoint)
            transfer = self._transfer = link.open(self._new_request(num_cached_blocks))
            try:
                await transfer.accepted()
                if is_on_device != link.is_on_device:
                    is_on_device = link.is_on_device
                    self._bound.append(asyncio.get_running_loop().create_future())
                    bind(is_on_device)
                transfer.bind(self._bound[-1])
                if first is None:
                    first = await transfer.first_tokens()
                    first_s = self._deps.clock.now()
                    if number > 1:
                        first.num_cached_tokens = 0  # an earlier try computed them
                    num_blocks = transfer.ticket.num_missing_blocks
                    on_first(first, 0 if ended_at_once(first) else num_blocks)
                await transfer.complete()
                if not ended_at_once(first):
                    self._observe(link, transfer, self._deps.clock.now() - first_s)
                return Prefilled(first, transfer.is_on_device)
            except failures.BatonError as error:
                self._log_failure(error)
                if not isinstance(error, BadData) or number == MAX_TRIES:
                    raise
                link.distrust_transport()
                self._set("baton.num_tries", number + 1)
        raise AssertionError("the last try returns or raises")

    def _close(self, error: failures.BatonError | None) -> None:
        """End the transfer on both sides, and the span. Safe to call again."""
        if self._transfer is not None:
            self._transfer.end(error)
        if self._span is not None:
            # A refusal for room is no handoff, and its span is not sent.
            if error is None or error.reason != "prefill_refused":
                self._span.close(type(error) if error is not None else None, error)
            self._span = None

    def _observe(self, link: PrefillLink, transfer: IncomingTransfer, tail_s: float) -> None:
        """Every block is here, `tail_s` after the first tokens: that was the transfer alone."""
        num_blocks = transfer.ticket.num_missing_blocks
        instruments.HANDOFF_BLOCKS.labels("received").inc(num_blocks)
        self._set("baton.num_blocks_received", num_blocks)
        self._set("baton.num_bytes_received", transfer.num_bytes_received)
        self._set("baton.transport", link.transport)
        self._links.observe_rate(transfer.num_bytes_received, tail_s, link.zone)

    def _set(self, key: str, value: int | str) -> None:
        if self._span is not None:
            self._span.set(key, value)

    def _log_failure(self, error: failures.BatonError) -> None:
        _log.warning(
            "handoff_failed",
            request_id=self._request.request_id,
            endpoint=self._request.submit.prefill_endpoint,
            detail=error.log_detail,
        )

    def _start_span(self, num_cached_blocks: int) -> Span:
        return start_span(
            "handoff",
            parent=self._attempt_span,
            request_id=self._request.request_id,
            kind=SpanKind.CLIENT,
            attributes={
                "baton.worker_id": self._deps.worker_id,
                "baton.prefill_endpoint": self._request.submit.prefill_endpoint,
                "baton.choice": self._choice,
                "baton.num_cached_blocks": num_cached_blocks,
            },
        )

    def _new_request(self, num_cached_blocks: int) -> PrefillRequest:
        request, submit = self._request, self._request.submit
        num_tokens = request.num_tokens(self._choice)
        ticket = Ticket(
            xfer_id=self._links.next_xfer_id(),
            request_id=request.request_id,
            epoch=submit.epoch,
            capability=new_capability(self._deps.random_bytes),
            first_missing_block=num_cached_blocks,
            num_blocks=self._deps.blocks.spec.num_blocks_for(num_tokens),
        )
        left_s = 0.0
        if request.deadline_s is not None:
            left_s = max(request.deadline_s - self._deps.clock.now(), 0.001)
        assert self._span is not None
        message = handoff_pb2.Prefill(
            xfer_id=ticket.xfer_id,
            request_id=ticket.request_id,
            epoch=ticket.epoch,
            choice=self._choice,
            capability=ticket.capability,
            num_prompt_tokens=request.num_prompt_tokens,
            cache_key=submit.cache_key,
            first_missing_block=ticket.first_missing_block,
            sampling=submit.sampling,
            emitted_ids=request.emitted_ids(self._choice),
            deadline_ms=round(left_s * 1000),
            traceparent=self._span.traceparent,
            priority=submit.priority,
            fork_choices=self._fork_choices,
            is_suspect=submit.is_suspect,
            is_quiet=submit.is_quiet,
            adapter=submit.adapter,
        )
        return PrefillRequest(ticket, message, request.prompt_ids, request.block_hashes, self.spent)
