"""The prefill worker's domain: takes handoff streams, checks the peer, keeps leases, drains.

Decode drives (decision 0014): this side computes what it is asked for, holds the blocks until the
peer is done, and frees them by itself when the peer stops renewing. While no decode worker is
ready, routers send it whole requests, and it serves gateways, too (decision 0104). Knows no grpc
and no torch.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator

from baton.handoff.frame_codec import OutFrame
from baton.handoff.transport import SendingEnd
from baton.runtime import logs
from baton.runtime.shared_stream import FrameStream, StreamLost
from baton.system.violation import Violation
from baton.wire import failures
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from baton.worker.front import WorkerFront
from baton.worker.handoff_hello import check_hello, make_hello
from services.decode_worker.gateway_link import GatewayStream
from services.decode_worker.gateways import Gateways
from services.decode_worker.prefill_hello import HandoffStream
from services.prefill_worker.decode_session import DecodeSession
from services.prefill_worker.open_transfers import OpenTransfers

MAX_SESSIONS = 256

_log = logs.get("prefill_worker")


class PrefillFront(WorkerFront):
    """One prefill worker."""

    def __init__(self, deps: WorkerDeps) -> None:
        super().__init__(deps)
        self._gateways = Gateways(deps, _dial_nobody, self.check_admission)
        self._transfers = OpenTransfers(deps.clock, self.check_admission)
        self._sessions: dict[DecodeSession, None] = {}

    @property
    def num_transfers(self) -> int:
        return len(self._transfers)

    async def serve(self, stream: FrameStream[handoff_pb2.DecodeFrame, OutFrame]) -> None:
        """Serve one decode worker's stream until it ends."""
        try:
            agreed = await self._exchange_hello(stream)
        except StreamLost:
            return
        if agreed is None:
            await stream.close()
            return
        session = DecodeSession(stream, self._deps, self._transfers, *agreed)
        self._sessions[session] = None
        try:
            await session.run()
        finally:
            self._sessions.pop(session, None)

    async def serve_gateway(self, stream: GatewayStream) -> None:
        """Serve one connection of a gateway until it ends."""
        await self._gateways.serve(stream)

    async def drain(self, limit_s: float) -> None:
        self._gateways.go_away(limit_s)
        await super().drain(limit_s)

    def check_integrity(self) -> None:
        """Asserts that every transfer has a lease, and every sequence a transfer or an attempt."""
        self._transfers.check_integrity()
        owned = {seq_id for transfer in self._transfers for seq_id in transfer.seq_ids}
        attempts = self._gateways.open_request_ids()
        sequences = dict(self._deps.dispatcher.open_sequences())
        assert owned <= sequences.keys()
        for seq_id, request_id in sequences.items():
            assert seq_id in owned or request_id in attempts, f"sequence {seq_id} of {request_id}"

    def violations(self) -> Iterator[Violation]:
        """Transfers without a lease or a live peer, sequences that belong to no transfer and no
        attempt, and attempts that cannot end."""
        served = {transfer for session in self._sessions for transfer in session.transfers}
        for transfer in self._transfers:
            if transfer not in served:
                peer = self._transfers.peer_of(transfer)
                yield Violation("lease_without_owner", transfer.request_id, f"of {peer}")
            if not transfer.is_over and not self._transfers.has_lease(transfer):
                yield Violation("transfer_without_lease", transfer.request_id, "")
        owned = {seq_id for transfer in self._transfers for seq_id in transfer.seq_ids}
        attempts = self._gateways.open_request_ids()
        for seq_id, request_id in self._deps.dispatcher.open_sequences():
            if seq_id not in owned and request_id not in attempts:
                yield Violation("sequence_without_transfer", request_id, f"sequence {seq_id}")
        yield from self._gateways.violations()

    def _background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        return self._transfers.sweep(), *self._gateways.background_tasks()

    def _core_stalled(self) -> None:
        self._gateways.core_stalled()
        error = failures.Unavailable("the prefill core stands still", reason="handoff_failed")
        for transfer in self._transfers:
            transfer.fail(error)

    def _core_died(self, suspect_request_ids: tuple[str, ...]) -> None:
        self._gateways.core_died(suspect_request_ids)
        for transfer in self._transfers:
            error = failures.Unavailable(
                "the prefill core died",
                reason="handoff_failed",
                is_suspect=transfer.request_id in suspect_request_ids,
            )
            transfer.fail(error)

    async def _wait_until_idle(self) -> None:
        await self._transfers.wait_until_empty()
        await self._gateways.wait_until_idle()

    def _drain_cut_short(self) -> None:
        """Log the open transfers, which end with their streams, and fail the open attempts."""
        _log.warning("drain_cut_short", num_transfers=self.num_transfers)
        if self._gateways.num_attempts:
            self._gateways.drain_cut_short()

    async def _finish_streams(self, reason: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._gateways.finish_streams(reason))
            for session in self._sessions:
                group.create_task(session.finish(reason))

    async def _exchange_hello(
        self, stream: FrameStream[handoff_pb2.DecodeFrame, OutFrame]
    ) -> tuple[handoff_pb2.DecodeHello, SendingEnd] | None:
        """The peer's hello and how to send; None when it was refused (and told so) or is gone."""
        first = await stream.read()
        if first is None or first.WhichOneof("frame") != "hello":
            return None
        deps = self._deps
        answer = make_hello(handoff_pb2.PrefillHello, deps)
        answer.zone = deps.reports.register.zone
        peer, sending = str(first.hello.worker_id), None
        try:
            self._check_peer(first.hello)
            sending = deps.transports.accept(first.hello, answer)
        except failures.BatonError as error:
            _log.warning("peer_refused", peer=peer, detail=error.message)
            answer.failure.CopyFrom(failures.to_wire(error))
        await stream.write(handoff_pb2.PrefillFrame(hello=answer))
        if sending is None:
            return None
        instruments.HANDOFF_LINKS.labels(sending.name).inc()
        return first.hello, sending

    def _check_peer(self, hello: handoff_pb2.DecodeHello) -> None:
        """Raises BatonError when this pair cannot work, naming the difference."""
        check_hello(hello, self._deps)
        if hello.tp_size > 1:
            raise failures.Incompatible(f"tp_size {hello.tp_size} != 1 here")
        if len(self._sessions) >= MAX_SESSIONS:
            raise failures.Overloaded(f"{MAX_SESSIONS} decode workers are connected already")


async def _dial_nobody(endpoint: str) -> HandoffStream:
    """A prefill worker prefills the prompts of its own attempts."""
    raise StreamLost(f"{endpoint} is not called from a prefill worker")
