"""The prefill worker's domain: takes handoff streams, checks the peer, keeps leases, drains.

Decode drives (decision 0014): this side computes what it is asked for, holds the blocks until the
peer is done, and frees them by itself when the peer stops renewing. Knows no grpc and no torch.
"""

import asyncio
from collections.abc import Iterator

from baton.engine.protocol.client import CoreDied
from baton.handoff.frame_codec import OutFrame
from baton.handoff.transport import SendingEnd
from baton.runtime import logs
from baton.runtime.audit import Audit
from baton.runtime.shared_stream import FrameStream, StreamLost
from baton.system.violation import Violation
from baton.wire import failures, kv_spec
from baton.wire.protocol import PROTOCOL_VERSION, agree
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.parts import WorkerDeps
from services.prefill_worker.decode_session import DecodeSession
from services.prefill_worker.open_transfers import OpenTransfers

MAX_SESSIONS = 256

_log = logs.get("prefill_worker")


class PrefillFront:
    """One prefill worker. `run` must run while streams are served."""

    def __init__(self, deps: WorkerDeps) -> None:
        self._deps = deps
        self._transfers = OpenTransfers(deps.clock, self._check_admission)
        self._sessions: dict[DecodeSession, None] = {}
        self._is_draining = False
        self._audit = Audit()
        deps.watch.on_change(self._core_stalled)
        deps.dispatcher.observe(lambda events: self._audit.found(events.violations))
        deps.dispatcher.observe(deps.metrics.observe)
        deps.dispatcher.observe(deps.reports.apply)

    @property
    def num_transfers(self) -> int:
        return len(self._transfers)

    async def run(self) -> None:
        """Drive engine events and leases until cancelled. Raises CoreDied, in a group."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._transfers.sweep())
            group.create_task(self._audit.run(self.violations))
            group.create_task(self._deps.watch.run())
            try:
                await self._deps.dispatcher.run()
            except CoreDied as died:
                await self._report_death(died)
                raise

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

    async def drain(self, cap_s: float) -> None:
        """Take nothing new, let what runs end within `cap_s`, then end all streams."""
        self._is_draining = True
        self._deps.reports.set_draining()
        try:
            async with asyncio.timeout(cap_s):
                await self._transfers.wait_until_empty()
        except TimeoutError:
            _log.warning("drain_cut_short", num_transfers=self.num_transfers)
        async with asyncio.TaskGroup() as group:
            for session in self._sessions:
                group.create_task(session.finish("draining"))

    def check_integrity(self) -> None:
        """Asserts that every transfer has one lease, and every sequence a transfer."""
        self._transfers.check_integrity()
        num_seqs = sum(len(transfer.seq_ids) for transfer in self._transfers)
        assert self._deps.dispatcher.num_open == num_seqs

    def violations(self) -> Iterator[Violation]:
        """Transfers without a lease or a live peer, and sequences without a transfer."""
        served = {transfer for session in self._sessions for transfer in session.transfers}
        for transfer in self._transfers:
            if transfer not in served:
                peer = self._transfers.peer_of(transfer)
                yield Violation("lease_without_owner", transfer.request_id, f"of {peer}")
            if not transfer.is_over and not self._transfers.has_lease(transfer):
                yield Violation("transfer_without_lease", transfer.request_id, "")
        owned = {seq_id for transfer in self._transfers for seq_id in transfer.seq_ids}
        for seq_id, request_id in self._deps.dispatcher.open_sequences():
            if seq_id not in owned:
                yield Violation("sequence_without_transfer", request_id, f"sequence {seq_id}")

    def _check_admission(self) -> None:
        """Raises Unavailable while nothing new is taken."""
        if self._is_draining:
            raise failures.Unavailable("this prefill worker is draining", reason="draining")
        self._deps.watch.check()

    async def _exchange_hello(
        self, stream: FrameStream[handoff_pb2.DecodeFrame, OutFrame]
    ) -> tuple[handoff_pb2.DecodeHello, SendingEnd] | None:
        """The peer's hello and how to send; None when it was refused (and told so) or is gone."""
        first = await stream.read()
        if first is None or first.WhichOneof("frame") != "hello":
            return None
        deps = self._deps
        answer = handoff_pb2.PrefillHello(
            protocol=PROTOCOL_VERSION,
            worker_id=deps.worker_id,
            boot_epoch=deps.boot_epoch,
            model_fp=deps.dispatcher.info.model_fp,
            kv_spec=kv_spec.to_wire(deps.blocks.spec),
            tp_size=1,
        )
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
        info = self._deps.dispatcher.info
        agree(hello.protocol, peer=hello.worker_id, own=self._deps.worker_id)
        if hello.model_fp != info.model_fp:
            raise failures.Incompatible(
                f"model_fp {hello.model_fp} of {hello.worker_id} != {info.model_fp} here"
            )
        difference = kv_spec.from_wire(hello.kv_spec).difference(self._deps.blocks.spec)
        if difference is not None:
            raise failures.Incompatible(f"kv_spec of {hello.worker_id}: {difference} here")
        if hello.tp_size > 1:
            raise failures.Incompatible(f"tp_size {hello.tp_size} != 1 here")
        if len(self._sessions) >= MAX_SESSIONS:
            raise failures.Overloaded(f"{MAX_SESSIONS} decode workers are connected already")

    def _core_stalled(self, stalled: bool) -> None:
        """What is computed here must be computed elsewhere; a core that wakes up drops it."""
        error = failures.Unavailable("the prefill core stands still", reason="handoff_failed")
        for transfer in self._transfers if stalled else ():
            transfer.fail(error)

    async def _report_death(self, died: CoreDied) -> None:
        """Fail what is open, and name those that ran in the step in which the core died."""
        for transfer in self._transfers:
            error = failures.Unavailable(
                "the prefill core died",
                reason="handoff_failed",
                is_suspect=transfer.request_id in died.suspect_request_ids,
            )
            transfer.fail(error)
        async with asyncio.TaskGroup() as group:
            for session in self._sessions:
                group.create_task(session.finish("core died"))
