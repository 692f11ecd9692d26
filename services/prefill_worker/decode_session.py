"""One decode worker's stream: its transfers, its credit, and what leaves next.

Each transfer is one coroutine from its Prefill to its end. Control frames (accepted, first token,
abort) overtake blocks. Blocks are pulled by the stream's writer, as far as the peer's credit goes
and at most one frame further, so that no frame can be too large for it, from the transfers in the
order in which they had some.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from baton.handoff.frame_codec import OutFrame
from baton.handoff.outcomes import DropCause, TransferOutcome
from baton.handoff.ticket import CAPABILITY_BYTES, ForeignFrame
from baton.handoff.transport import SendingEnd
from baton.runtime import logs
from baton.runtime.shared_stream import FrameStream, FrameWriter, StreamLost, StreamRunner
from baton.wire import failures
from baton.wire.limits import MAX_CHOICES
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.cancels import observe_cancel
from baton.worker.deps import WorkerDeps
from baton.worker.prompt import PromptBuffer, check_cache_key
from baton.worker.sampling import to_params
from services.prefill_worker.open_transfers import OpenTransfers
from services.prefill_worker.outgoing_transfer import OutgoingTransfer, PrefillOrder, TransferEnded

MAX_PARTIAL_PROMPTS = 64

_log = logs.get("prefill_worker.session")


class DecodeSession:
    """Serves one stream after its hello."""

    def __init__(
        self,
        stream: FrameStream[handoff_pb2.DecodeFrame, OutFrame],
        deps: WorkerDeps,
        open_transfers: OpenTransfers,
        hello: handoff_pb2.DecodeHello,
        sending: SendingEnd,
    ) -> None:
        self.peer = hello.worker_id
        self._sending = sending
        self._deps = deps
        self._open = open_transfers
        writer: FrameWriter[OutFrame] = FrameWriter(stream, drain=self._next_blocks)
        self._runner = StreamRunner(stream, writer, self._on_frame)
        self._transfers: dict[int, OutgoingTransfer] = {}
        # Each transfer's coroutine.
        self._tasks = asyncio.TaskGroup()
        # Prefills whose prompt continues in further frames.
        self._partial: dict[int, tuple[handoff_pb2.Prefill, PromptBuffer]] = {}
        self._ready: deque[OutgoingTransfer] = deque()
        self._credit_bytes = hello.credit_bytes

    @property
    def transfers(self) -> Iterable[OutgoingTransfer]:
        """Those of this peer."""
        return self._transfers.values()

    async def run(self) -> None:
        """Serve until the stream ends; then everything of this peer is freed."""
        async with self._tasks:
            try:
                await self._runner.run()
            finally:
                if self._runner.was_lost:
                    num_open = len(self._transfers)
                    _log.warning("handoff_stream_lost", peer=self.peer, num_open=num_open)
                for transfer in self._transfers.values():
                    transfer.end(TransferOutcome.LOST)
                self._partial.clear()

    async def finish(self, reason: str) -> None:
        """Say Bye and end the stream."""
        await self._runner.finish(handoff_pb2.PrefillFrame(bye={"reason": reason}))

    # The life of a transfer.

    async def _serve(self, transfer: OutgoingTransfer) -> None:
        """Take it under a lease, or refuse it."""
        try:
            with self._open.admitted(transfer, self.peer):
                await self._hand_over(transfer)
        except failures.BatonError as error:
            self._refuse(transfer.ticket.xfer_id, transfer.request_id, error)
        finally:
            del self._transfers[transfer.ticket.xfer_id]

    async def _hand_over(self, transfer: OutgoingTransfer) -> None:
        """Compute, send what is final, and hold it until the end, whichever side brings it."""
        outcome = TransferOutcome.LOST
        try:
            transfer.start()
            await transfer.started()
            self._deps.reports.accepted(transfer.request_id)
            self._control(handoff_pb2.PrefillFrame(accepted={"xfer_id": transfer.ticket.xfer_id}))
            while not transfer.is_computed:
                self._offer(transfer)
                await transfer.news()
                self._tell_spent(transfer)
            self._control(handoff_pb2.PrefillFrame(first_tokens=transfer.take_first_tokens()))
            self._offer(transfer)
            await transfer.over()
        except TransferEnded as end:
            outcome = end.outcome
            if end.error is not None:
                self._tell_failure(transfer, end.outcome, end.error)
        finally:
            self._free(transfer, outcome)

    def _offer(self, transfer: OutgoingTransfer) -> None:
        """Let the writer take its blocks that are final."""
        if transfer not in self._ready:
            self._ready.append(transfer)
        self._runner.writer.wake()

    def _tell_spent(self, transfer: OutgoingTransfer) -> None:
        """Let the peer bill what was computed, also if it gives up soon."""
        bill = transfer.bill()
        if bill.prefill_us:
            spent = handoff_pb2.Spent(xfer_id=transfer.ticket.xfer_id, engine=bill)
            self._control(handoff_pb2.PrefillFrame(spent=spent))

    def _tell_failure(
        self, transfer: OutgoingTransfer, outcome: TransferOutcome, error: failures.BatonError
    ) -> None:
        self._tell_spent(transfer)
        ticket = transfer.ticket
        if outcome is TransferOutcome.REFUSED:
            self._deps.reports.accepted(transfer.request_id)
            self._refuse(ticket.xfer_id, transfer.request_id, error)
            return
        _log.warning(
            "transfer_failed", request_id=transfer.request_id, reason=error.reason, outcome=outcome
        )
        abort = handoff_pb2.TransferAbort(
            xfer_id=ticket.xfer_id,
            capability=ticket.capability,
            failure=failures.to_wire(error),
        )
        self._control(handoff_pb2.PrefillFrame(abort=abort))

    def _free(self, transfer: OutgoingTransfer, outcome: TransferOutcome) -> None:
        if transfer in self._ready:
            self._ready.remove(transfer)
        dispatcher = self._deps.dispatcher
        for seq_id in transfer.seq_ids:
            if transfer.is_computed:
                dispatcher.release(seq_id)
            else:
                dispatcher.abort(seq_id)
        instruments.HANDOFF_TRANSFERS.labels("sent", outcome).inc()
        if outcome is TransferOutcome.COMPLETE and not transfer.needs_no_blocks:
            instruments.HANDOFF_BLOCKS.labels("sent").inc(transfer.ticket.num_missing_blocks)
        if outcome is TransferOutcome.ABORTED:
            observe_cancel(self._deps, transfer.phase, transfer.seq_ids)

    # Frames.

    def _on_frame(self, frame: handoff_pb2.DecodeFrame) -> bool:
        kind = frame.WhichOneof("frame") or ""
        if kind == "bye":
            return False
        handler = _HANDLERS.get(kind)
        if handler is None:
            instruments.HANDOFF_DROPPED_FRAMES.labels(DropCause.UNKNOWN).inc()
        else:
            handler(self, getattr(frame, kind))
        return True

    def _on_prefill(self, request: handoff_pb2.Prefill) -> None:
        xfer_id = request.xfer_id
        if xfer_id in self._transfers or xfer_id in self._partial:
            instruments.HANDOFF_DROPPED_FRAMES.labels(DropCause.REPEAT).inc()
            return
        try:
            if len(request.capability) != CAPABILITY_BYTES:
                raise failures.InvalidRequest(f"a capability has {CAPABILITY_BYTES} bytes")
            check_cache_key(request.cache_key)
            if len(request.fork_choices) >= MAX_CHOICES:
                raise failures.InvalidRequest(f"n is at most {MAX_CHOICES}", param="n")
            if len(self._partial) >= MAX_PARTIAL_PROMPTS:
                raise failures.Overloaded(f"{MAX_PARTIAL_PROMPTS} prompts are unfinished already")
            max_tokens = self._deps.dispatcher.info.max_model_len
            buffer = PromptBuffer(request.num_prompt_tokens, max_tokens)
            buffer.add(request.prompt_ids, request.block_hashes)
            self._partial[xfer_id] = (request, buffer)
            self._start_if_complete(xfer_id)
        except failures.BatonError as error:
            self._partial.pop(xfer_id, None)
            self._refuse(xfer_id, request.request_id, error)

    def _on_prefill_part(self, part: handoff_pb2.PrefillPart) -> None:
        if part.xfer_id not in self._partial:
            instruments.HANDOFF_DROPPED_FRAMES.labels(DropCause.TRANSFER).inc()
            return
        request, buffer = self._partial[part.xfer_id]
        try:
            buffer.add(part.prompt_ids, part.block_hashes)
            self._start_if_complete(part.xfer_id)
        except failures.BatonError as error:
            self._partial.pop(part.xfer_id, None)
            self._refuse(part.xfer_id, request.request_id, error)

    def _start_if_complete(self, xfer_id: int) -> None:
        request, buffer = self._partial[xfer_id]
        if not buffer.is_complete:
            return
        del self._partial[xfer_id]
        sampling = to_params(request.sampling)
        token_ids = buffer.token_ids + request.emitted_ids
        order = PrefillOrder(request, token_ids, buffer.block_hashes, sampling)
        transfer = self._transfers[xfer_id] = OutgoingTransfer(order, self._deps, self._sending)
        self._tasks.create_task(self._serve(transfer))

    def _on_credit(self, credit: handoff_pb2.TransferCredit) -> None:
        self._credit_bytes += credit.bytes
        self._runner.writer.wake()

    def _on_renew(self, renew: handoff_pb2.RenewTransfers) -> None:
        for xfer_id in renew.xfer_ids:
            if (transfer := self._transfers.get(xfer_id)) is not None:
                self._open.renew(transfer)

    def _on_done(self, done: handoff_pb2.TransferDone) -> None:
        transfer = self._find(done.xfer_id, done.capability)
        if transfer is not None:
            transfer.end(TransferOutcome.COMPLETE)

    def _on_abort(self, abort: handoff_pb2.TransferAbort) -> None:
        self._partial.pop(abort.xfer_id, None)
        transfer = self._find(abort.xfer_id, abort.capability)
        if transfer is not None:
            _log.info(
                "transfer_aborted", request_id=transfer.request_id, reason=abort.failure.reason
            )
            transfer.end(TransferOutcome.ABORTED)

    def _find(self, xfer_id: int, capability: bytes) -> OutgoingTransfer | None:
        transfer = self._transfers.get(xfer_id)
        try:
            if transfer is None or transfer.is_over:
                raise ForeignFrame(DropCause.TRANSFER)
            transfer.ticket.check_capability(capability)
        except ForeignFrame as error:
            instruments.HANDOFF_DROPPED_FRAMES.labels(error.cause).inc()
            return None
        return transfer

    def _refuse(self, xfer_id: int, request_id: str, error: failures.BatonError) -> None:
        _log.info("transfer_refused", request_id=request_id, reason=error.reason)
        refused = handoff_pb2.TransferRefused(xfer_id=xfer_id, failure=failures.to_wire(error))
        self._control(handoff_pb2.PrefillFrame(refused=refused))

    # Writing.

    def _next_blocks(self) -> OutFrame | None:
        """The next Blocks or Commit that the credit allows (the writer's drain)."""
        while self._ready:
            transfer, sender = self._ready[0], self._ready[0].sender
            assert sender is not None
            if transfer.is_over or not sender.has_next():
                self._ready.popleft()
                continue
            num_bytes = sender.next_bytes()
            if num_bytes and self._credit_bytes <= 0:
                return None
            self._credit_bytes -= num_bytes
            instruments.HANDOFF_BYTES.labels("sent", self._sending.name).inc(num_bytes)
            return sender.next_frame()
        return None

    def _control(self, frame: handoff_pb2.PrefillFrame) -> None:
        try:
            self._runner.writer.send_control(frame)
        except StreamLost:
            self._runner.stop_lost()


_HANDLERS: dict[str, Callable[[DecodeSession, Any], None]] = {
    "prefill": DecodeSession._on_prefill,
    "prefill_part": DecodeSession._on_prefill_part,
    "credit": DecodeSession._on_credit,
    "renew": DecodeSession._on_renew,
    "done": DecodeSession._on_done,
    "abort": DecodeSession._on_abort,
}
