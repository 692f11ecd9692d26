"""The shared handoff stream to one prefill worker: frames, credit, renewals, loss.

Dialled on first use, closed after IDLE_CLOSE_S without a transfer, dialled again on next use. When
it is lost, every transfer on it has failed; what that means is the attempts' business. When blocks
that came by a transport other than the plain one were bad, the link takes no more transfers, and
the next one to that worker is plain; after that one's end, what is best is tried again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from baton.handoff.lease import LEASE_S, RENEW_INTERVAL_S, LeaseTable
from baton.handoff.transport import PLAIN, ReceivingEnd, num_payload_bytes
from baton.runtime import logs
from baton.runtime.shared_stream import FrameWriter, StreamLost
from baton.runtime.stream_pump import StreamPump
from baton.system.rate_meter import RateMeter
from baton.wire import failures
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.parts import WorkerParts
from baton.worker.prompt import split_prompt
from services.decode_worker.prefill_hello import Connection, Dial, connect
from services.decode_worker.transfer import DecodeTransfer

IDLE_CLOSE_S = 60.0
# A link that delivered blocks of any transfer in this time is busy: the others wait in line.
BUSY_S = 1.5 * RENEW_INTERVAL_S
# Bytes of KV that a prefill worker may have on the way to us.
CREDIT_WINDOW_BYTES = 16 * 1024 * 1024
# What one TransferCredit can say.
MAX_CREDIT_BYTES = 2**64 - 1
MAX_TRANSFERS_PER_LINK = 1024
MAX_LINKS = 256
# The rate comes from transfers of this size on; a smaller one takes as long as its messages, for
# which the middle one of the last few stands, and before so many nothing.
MIN_RATE_BYTES = 2**20
MAX_SMALL, MIN_SMALL = 5, 3
# After so many bytes, earlier ones count half.
RATE_HALF_LIFE_BYTES = 64 * 2**20
_DELIVERIES = ("blocks", "commit")

_log = logs.get("decode_worker.prefill_link")


class PrefillLink:
    """One prefill worker. Transfers opened before the hello is answered wait for it."""

    def __init__(self, endpoint: str, parts: WorkerParts, *, only_plain: bool = False) -> None:
        self.endpoint = endpoint
        self.distrusts_transport = False
        self._only_plain = only_plain
        self._end: ReceivingEnd | None = None
        self._parts = parts
        self._transfers: dict[int, DecodeTransfer] = {}
        # Transfers whose peer has computed and must now deliver.
        self._leases: LeaseTable[int] = LeaseTable(
            parts.clock, duration_s=LEASE_S, max_leases=MAX_TRANSFERS_PER_LINK
        )
        self._unsent: list[tuple[DecodeTransfer, bytes, bytes]] = []
        self._writer: FrameWriter[handoff_pb2.DecodeFrame] | None = None
        self._pump: StreamPump[handoff_pb2.DecodeFrame] | None = None
        self._is_closing = False
        self._last_used_s = self._last_delivery_s = parts.clock.now()
        self._owed_bytes = 0
        self._handlers: dict[str, Callable[[DecodeTransfer, Any], None]] = {
            "accepted": lambda transfer, _: transfer.on_accepted(),
            "refused": DecodeTransfer.on_refused,
            "first_tokens": DecodeTransfer.on_first_tokens,
            "blocks": self._on_blocks,
            "commit": DecodeTransfer.on_commit,
            "abort": DecodeTransfer.on_aborted,
        }

    @property
    def is_usable(self) -> bool:
        """New transfers may be opened on it."""
        return not self._is_closing and not self.distrusts_transport

    @property
    def transport(self) -> str:
        """Its name; empty before the hello was answered."""
        return "" if self._end is None else self._end.name

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
        """Of its transfers."""
        for transfer in self._transfers.values():
            yield transfer.prefill.request_id

    def open(self, transfer: DecodeTransfer, prompt_ids: bytes, block_hashes: bytes) -> None:
        """Ask for a transfer; frames of it go to `transfer` until `end`. Raises Overloaded."""
        assert self.is_usable
        if len(self._transfers) >= MAX_TRANSFERS_PER_LINK:
            raise failures.Overloaded(f"{MAX_TRANSFERS_PER_LINK} transfers are open on one link")
        self._transfers[transfer.ticket.xfer_id] = transfer
        if self._writer is None:
            self._unsent.append((transfer, prompt_ids, block_hashes))
        else:
            self._send_prefill(transfer, prompt_ids, block_hashes)

    def end(self, transfer: DecodeTransfer, error: failures.BatonError | None) -> None:
        """Close a transfer: done (None) or aborted. Safe to call again."""
        ticket = transfer.ticket
        if self._transfers.pop(ticket.xfer_id, None) is None:
            return
        transfer.end()
        self._leases.release(ticket.xfer_id)
        self._last_used_s = self._parts.clock.now()
        outcome = "complete" if error is None else "aborted"
        instruments.HANDOFF_TRANSFERS.labels("received", outcome).inc()
        if self._writer is None:
            self._unsent = [entry for entry in self._unsent if entry[0] is not transfer]
            return
        frame = handoff_pb2.DecodeFrame()
        ending = frame.done if error is None else frame.abort
        ending.xfer_id = ticket.xfer_id
        ending.capability = ticket.capability
        if error is not None:
            frame.abort.failure.CopyFrom(failures.to_wire(error))
        # In order: an abort that overtook its own Prefill would leave an orphan behind.
        self._send(frame)

    def consumed(self, num_bytes: int) -> None:
        """Pages have landed, or will not; memory for this many bytes is free again.

        The credit is given back in large pieces.
        """
        self._last_delivery_s = self._parts.clock.now()
        # A frame that names absurd sizes is refused; its peer gets the credit that can be said.
        self._owed_bytes = min(self._owed_bytes + num_bytes, MAX_CREDIT_BYTES)
        if self._owed_bytes >= CREDIT_WINDOW_BYTES // 4 and self._writer is not None:
            credit = handoff_pb2.TransferCredit(bytes=self._owed_bytes)
            self._owed_bytes = 0
            self._send(handoff_pb2.DecodeFrame(credit=credit), is_control=True)

    async def run(self, dial: Dial) -> None:
        """Serve until the stream ends or is idle; then every open transfer has failed."""
        error: failures.BatonError = failures.Unavailable(
            "the prefill worker was lost", reason="handoff_failed"
        )
        try:
            connection = await connect(
                dial,
                self.endpoint,
                self._parts,
                credit_bytes=CREDIT_WINDOW_BYTES,
                only_plain=self._only_plain,
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
        if self._pump is not None:
            await self._pump.finish(handoff_pb2.DecodeFrame(bye={"reason": reason}))

    async def _serve(self, connection: Connection) -> None:
        self._end, stream = connection.end, connection.stream
        writer: FrameWriter[handoff_pb2.DecodeFrame] = FrameWriter(stream)
        self._writer = writer
        self._pump = StreamPump(stream, writer, self._on_frame)
        unsent, self._unsent = self._unsent, []
        for transfer, prompt_ids, block_hashes in unsent:
            self._send_prefill(transfer, prompt_ids, block_hashes)
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep())
            await self._pump.run()
            keeping.cancel()

    def _send_prefill(
        self, transfer: DecodeTransfer, prompt_ids: bytes, block_hashes: bytes
    ) -> None:
        parts = split_prompt(prompt_ids, block_hashes)
        prefill = transfer.prefill
        prefill.prompt_ids, prefill.block_hashes = next(parts)
        self._send(handoff_pb2.DecodeFrame(prefill=prefill))
        for ids, hashes in parts:
            part = handoff_pb2.PrefillPart(
                xfer_id=transfer.ticket.xfer_id, prompt_ids=ids, block_hashes=hashes
            )
            self._send(handoff_pb2.DecodeFrame(prefill_part=part))

    def _send(self, frame: handoff_pb2.DecodeFrame, *, is_control: bool = False) -> None:
        assert self._writer is not None
        try:
            (self._writer.send_control if is_control else self._writer.send)(frame)
        except StreamLost:
            self._break_off()

    def _break_off(self) -> None:
        """The stream is of no more use: end it, and dial anew for the next transfer."""
        assert self._pump is not None
        self._is_closing = True
        self._pump.stop_lost()

    def _on_frame(self, frame: handoff_pb2.PrefillFrame) -> bool:
        kind = frame.WhichOneof("frame") or ""
        if kind == "bye":
            return False
        handler = self._handlers.get(kind)
        if handler is None:
            instruments.HANDOFF_DROPPED_FRAMES.labels("unknown").inc()
            return True
        if kind in _DELIVERIES:
            self._last_delivery_s = self._parts.clock.now()
        message = getattr(frame, kind)
        transfer = self._transfers.get(message.xfer_id)
        if transfer is None:
            instruments.HANDOFF_DROPPED_FRAMES.labels("transfer").inc()
            if kind == "blocks":
                self.consumed(num_payload_bytes(message))
            return True
        self._touch(transfer)
        handler(transfer, message)
        return True

    def _on_blocks(self, transfer: DecodeTransfer, frame: handoff_pb2.Blocks) -> None:
        assert self._end is not None
        transfer.on_blocks(frame, self._end)

    def _touch(self, transfer: DecodeTransfer) -> None:
        """The peer is alive for this transfer."""
        xfer_id = transfer.ticket.xfer_id
        if not self._leases.renew(xfer_id) and self._leases.can_grant():
            self._leases.grant(xfer_id)

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
            elif self._parts.clock.now() - self._last_used_s >= IDLE_CLOSE_S:
                await self.close("idle")

    def _expire(self) -> None:
        silent_s = self._parts.clock.now() - self._last_delivery_s
        for transfer in self._transfers.values():
            # Before the first token only the deadline limits compute; before the bind it is our
            # own core that we wait for.
            if silent_s < BUSY_S or not transfer.is_waiting_for_peer:
                self._touch(transfer)
        for xfer_id in self._leases.sweep():
            late = self._transfers.get(xfer_id)
            if late is None:
                continue  # it ended with another choice of its attempt, a moment ago
            request_id = late.ticket.request_id
            _log.warning("transfer_expired", request_id=request_id, endpoint=self.endpoint)
            error = failures.Unavailable(
                f"no blocks from the prefill worker for {LEASE_S} s", reason="handoff_failed"
            )
            late.on_lost(error)
            if silent_s >= LEASE_S:
                # Nothing came for anybody: credit or the peer's writer is stuck, the stream is
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
        self._writer = None
        for transfer in list(self._transfers.values()):
            if not transfer.is_ended:
                transfer.on_lost(error)
        assert not self._transfers, "owners end their failed transfers"


class PrefillLinks:
    """All links of this worker, by endpoint. `run` must run while transfers are opened."""

    def __init__(self, parts: WorkerParts, dial: Dial) -> None:
        self._parts = parts
        self._dial = dial
        # By endpoint, the one that new transfers use; and all, those included that only end theirs.
        self._links: dict[str, PrefillLink] = {}
        self._running: dict[PrefillLink, None] = {}
        self._group: asyncio.TaskGroup | None = None
        self._last_xfer_id = 0
        self._rate = RateMeter(RATE_HALF_LIFE_BYTES)
        self._small_s: deque[float] = deque(maxlen=MAX_SMALL)

    def open_request_ids(self) -> Iterator[str]:
        """Of all transfers."""
        for link in self._running:
            yield from link.open_request_ids()

    @property
    def num_transfers(self) -> int:
        return sum(link.num_transfers for link in self._running)

    def observe_rate(self, num_bytes: int, duration_s: float) -> None:
        """All bytes of one transfer, and how long it went on after their compute was done.

        The router is told what a handoff adds to its prefill, at least and per byte.
        """
        if num_bytes >= MIN_RATE_BYTES:
            self._rate.observe(num_bytes, duration_s)
        else:
            self._small_s.append(duration_s)
        small_s = median(self._small_s) if len(self._small_s) >= MIN_SMALL else 0.0
        self._parts.reports.set_handoff_speed(self._rate.per_s, small_s)

    def next_xfer_id(self) -> int:
        """Never the same twice in one life of this worker."""
        self._last_xfer_id += 1
        return self._last_xfer_id

    def get(self, endpoint: str) -> PrefillLink:
        """The link to `endpoint`, dialling it if needed. Raises Overloaded beyond MAX_LINKS."""
        link = self._links.get(endpoint)
        if link is not None and link.is_usable:
            return link
        if len(self._running) >= MAX_LINKS:
            raise failures.Overloaded(f"{MAX_LINKS} prefill workers are connected already")
        assert self._group is not None, "run() first"
        only_plain = link is not None and link.distrusts_transport
        link = self._links[endpoint] = PrefillLink(endpoint, self._parts, only_plain=only_plain)
        self._running[link] = None
        self._group.create_task(self._run_link(link))
        return link

    async def run(self) -> None:
        """Own the links' tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    async def close(self, reason: str) -> None:
        """Say Bye on every link."""
        async with asyncio.TaskGroup() as group:
            for link in self._running:
                group.create_task(link.close(reason))

    async def _run_link(self, link: PrefillLink) -> None:
        try:
            await link.run(self._dial)
        finally:
            self._running.pop(link, None)
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]
