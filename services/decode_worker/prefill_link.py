"""The shared handoff stream to one prefill worker: frames, credit, renewals, loss.

Dialled on first use, closed after IDLE_CLOSE_S without a transfer, dialled again on next use. When
it is lost, every transfer on it has failed; what that means is the attempts' business. When blocks
that came by a transport other than the plain one were bad, the link takes no more transfers, and
the next one to that worker is plain; after that one's end, what is best is tried again.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from baton.handoff.outcomes import DropCause, TransferOutcome
from baton.handoff.ticket import LEASE_S, RENEW_INTERVAL_S
from baton.handoff.transport import PLAIN, ReceivingEnd, num_payload_bytes
from baton.runtime import logs
from baton.runtime.shared_stream import FrameWriter, StreamLost, StreamRunner
from baton.wire import failures
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from services.decode_worker.delivery_watch import DeliveryWatch
from services.decode_worker.incoming_transfer import IncomingTransfer, PrefillRequest
from services.decode_worker.prefill_hello import Connection, Dial, connect

IDLE_CLOSE_S = 60.0
# Bytes of KV that a prefill worker may have on the way to us.
CREDIT_WINDOW_BYTES = 16 * 1024 * 1024
# What one TransferCredit can say.
MAX_CREDIT_BYTES = 2**64 - 1
MAX_TRANSFERS_PER_LINK = 1024
_DELIVERIES = ("blocks", "commit")
_HANDLERS: dict[str, Callable[[IncomingTransfer, Any], None]] = {
    "accepted": IncomingTransfer.on_accepted,
    "refused": IncomingTransfer.on_refused,
    "spent": IncomingTransfer.on_spent,
    "first_tokens": IncomingTransfer.on_first_tokens,
    "commit": IncomingTransfer.on_commit,
    "abort": IncomingTransfer.on_aborted,
}

_log = logs.get("decode_worker.prefill_link")


class PrefillLink:
    """One prefill worker. Transfers opened before the hello is answered wait for it."""

    def __init__(self, endpoint: str, deps: WorkerDeps) -> None:
        self.endpoint = endpoint
        self.distrusts_transport = False
        self._deps = deps
        self._transfers: dict[int, IncomingTransfer] = {}
        self._watch = DeliveryWatch(deps.clock)
        # Both are set once the hello was answered; the runner until the stream ends.
        self._end: ReceivingEnd | None = None
        # Where the peer runs; empty before its hello, and where it does not say.
        self.zone = ""
        self._runner: StreamRunner[handoff_pb2.DecodeFrame] | None = None
        self._is_closing = False
        self._last_used_s = deps.clock.now()
        # What the peer may still send, as it counts itself, and what it gets back next.
        self._credit_bytes = CREDIT_WINDOW_BYTES
        self._owed_bytes = 0

    @property
    def is_usable(self) -> bool:
        """New transfers may be opened on it."""
        return not self._is_closing and not self.distrusts_transport

    @property
    def transport(self) -> str:
        """Its name; empty before the hello was answered."""
        return "" if self._end is None else self._end.name

    @property
    def is_on_device(self) -> bool:
        """The core reads the blocks itself."""
        return self._end is not None and self._end.is_on_device

    def distrust_transport(self) -> None:
        """Blocks came wrong: another link, a plain one, may do better."""
        if self.transport == PLAIN or self.distrusts_transport:
            return
        self.distrusts_transport = True
        instruments.HANDOFF_FALLBACKS.labels(self.transport).inc()
        _log.warning("transport_failed", endpoint=self.endpoint, transport=self.transport)

    @property
    def num_transfers(self) -> int:
        return len(self._transfers)

    def open_request_ids(self) -> Iterator[str]:
        """The request ids of its transfers."""
        for transfer in self._transfers.values():
            yield transfer.ticket.request_id

    def open(self, request: PrefillRequest) -> IncomingTransfer:
        """Ask for a transfer; its end is the caller's business. Raises Overloaded."""
        assert self.is_usable
        if len(self._transfers) >= MAX_TRANSFERS_PER_LINK:
            raise failures.Overloaded(f"{MAX_TRANSFERS_PER_LINK} transfers are open on one link")
        transfer = IncomingTransfer(request, self._deps, self._consumed, self._ended)
        self._transfers[request.ticket.xfer_id] = transfer
        if self._runner is not None:
            self._send_all(request)
        return transfer

    async def run(self, dial: Dial, *, only_plain: bool = False) -> None:
        """Serve until the stream ends or is idle; then every open transfer has failed."""
        error: failures.BatonError = failures.Unavailable(
            "the prefill worker was lost", reason="handoff_failed"
        )
        try:
            connection = await connect(
                dial,
                self.endpoint,
                self._deps,
                credit_bytes=CREDIT_WINDOW_BYTES,
                only_plain=only_plain,
            )
            await self._serve(connection)
        except StreamLost:
            error = failures.Unavailable(
                "the prefill worker cannot be reached", reason="handoff_failed"
            )
        except failures.BatonError as refusal:
            error = refusal
        finally:
            self._is_closing = True
            self._fail_all(error)
            if self._end is not None:
                self._end.close()

    async def close(self, reason: str) -> None:
        """Say Bye and end the stream; open transfers fail."""
        self._is_closing = True
        if self._runner is not None:
            await self._runner.finish(handoff_pb2.DecodeFrame(bye={"reason": reason}))

    async def _serve(self, connection: Connection) -> None:
        self._end, stream, self.zone = connection.end, connection.stream, connection.zone
        self._runner = StreamRunner(stream, FrameWriter(stream), self._on_frame)
        for transfer in self._transfers.values():
            self._send_all(transfer.request)
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep())
            await self._runner.run()
            keeping.cancel()

    def _ended(self, transfer: IncomingTransfer, error: failures.BatonError | None) -> None:
        """Tell the peer that a transfer is complete (None), or why it was given up."""
        ticket = transfer.ticket
        del self._transfers[ticket.xfer_id]
        self._last_used_s = self._deps.clock.now()
        outcome = TransferOutcome.COMPLETE if error is None else TransferOutcome.ABORTED
        instruments.HANDOFF_TRANSFERS.labels("received", outcome).inc()
        if self._runner is None:
            return  # it was not asked for yet, or the stream is lost
        frame = handoff_pb2.DecodeFrame()
        ending = frame.done if error is None else frame.abort
        ending.xfer_id = ticket.xfer_id
        ending.capability = ticket.capability
        if error is not None:
            frame.abort.failure.CopyFrom(failures.to_wire(error))
        # In order: an abort that overtook its own Prefill would leave an orphan behind.
        self._send(frame)

    def _consumed(self, num_bytes: int) -> None:
        """Pages have landed, or will not; memory for this many bytes is free again.

        The credit is given back in large pieces.
        """
        self._watch.delivered()
        # A frame that names absurd sizes is refused; its peer gets the credit that can be said.
        self._owed_bytes = min(self._owed_bytes + num_bytes, MAX_CREDIT_BYTES)
        if self._owed_bytes >= CREDIT_WINDOW_BYTES // 4 and self._runner is not None:
            credit = handoff_pb2.TransferCredit(bytes=self._owed_bytes)
            self._credit_bytes += self._owed_bytes
            self._owed_bytes = 0
            self._send(handoff_pb2.DecodeFrame(credit=credit), is_control=True)

    def _send_all(self, request: PrefillRequest) -> None:
        for frame in request.frames():
            self._send(frame)

    def _send(self, frame: handoff_pb2.DecodeFrame, *, is_control: bool = False) -> None:
        assert self._runner is not None
        writer = self._runner.writer
        try:
            (writer.send_control if is_control else writer.send)(frame)
        except StreamLost:
            self._break_off()

    def _break_off(self) -> None:
        """The stream is of no more use: end it, and dial anew for the next transfer."""
        assert self._runner is not None
        self._is_closing = True
        self._runner.stop_lost()

    def _on_frame(self, frame: handoff_pb2.PrefillFrame) -> bool:
        kind = frame.WhichOneof("frame") or ""
        if kind == "bye":
            return False
        if kind != "blocks" and kind not in _HANDLERS:
            instruments.HANDOFF_DROPPED_FRAMES.labels(DropCause.UNKNOWN).inc()
            return True
        if kind in _DELIVERIES:
            self._watch.delivered()
        message = getattr(frame, kind)
        if kind == "blocks" and not self._takes(num_payload_bytes(message)):
            return False
        transfer = self._transfers.get(message.xfer_id)
        if transfer is None:
            instruments.HANDOFF_DROPPED_FRAMES.labels(DropCause.TRANSFER).inc()
            if kind == "blocks":
                self._consumed(num_payload_bytes(message))
            return True
        transfer.heard_at = self._deps.clock.now()
        if kind == "blocks":
            assert self._end is not None
            transfer.on_blocks(message, self._end)
        else:
            _HANDLERS[kind](transfer, message)
        return True

    def _takes(self, num_bytes: int) -> bool:
        """The peer had credit for another frame, of any size. Else nothing that it sends is kept,
        and the stream ends: frames wait in memory for their blocks to be bound."""
        if self._credit_bytes <= 0:
            _log.warning("handoff_credit_exceeded", endpoint=self.endpoint)
            self._break_off()
            return False
        self._credit_bytes -= num_bytes
        return True

    async def _keep(self) -> None:
        """Renew at the peer what is open here, end what the peer lets hang, close when idle."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            self._expire()
            if self._transfers:
                renew = handoff_pb2.RenewTransfers(xfer_ids=self._transfers)
                self._send(handoff_pb2.DecodeFrame(renew=renew), is_control=True)
            elif self.distrusts_transport:
                await self.close("transport failed")
            elif self._deps.clock.now() - self._last_used_s >= IDLE_CLOSE_S:
                await self.close("idle")

    def _expire(self) -> None:
        is_stuck = self._watch.is_stuck
        for late in self._watch.find_late(self._transfers.values()):
            request_id = late.ticket.request_id
            _log.warning("transfer_expired", request_id=request_id, endpoint=self.endpoint)
            error = failures.Unavailable(
                f"no blocks from the prefill worker for {LEASE_S} s", reason="handoff_failed"
            )
            late.lost(error)
            if is_stuck:
                # No transfer got anything: credit or the peer's writer is stuck, the stream is
                # useless. Other transfers on it fail now rather than one lease later.
                self._break_off()

    def _fail_all(self, error: failures.BatonError) -> None:
        if self._transfers:
            _log.warning(
                "prefill_link_lost",
                endpoint=self.endpoint,
                num_transfers=len(self._transfers),
                detail=error.message,
            )
        self._runner = None
        for transfer in list(self._transfers.values()):
            transfer.lost(error)
