"""The prefill worker's domain: takes handoff streams, checks the peer, keeps leases, drains.

Decode drives (decision 0014): this side computes what it is asked for, holds the blocks until the
peer is done, and frees them by itself when the peer stops renewing. Knows no grpc and no torch.
"""

import asyncio
from collections.abc import Iterator

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import StepEvents
from baton.handoff.frame_codec import OutFrame
from baton.handoff.lease import SWEEP_INTERVAL_S, LeaseTable
from baton.handoff.transport import SendingEnd
from baton.runtime import logs
from baton.runtime.audit import Audit
from baton.runtime.shared_stream import FrameStream, StreamLost
from baton.system.violation import Violation
from baton.wire import failures, kv_spec
from baton.wire.protocol import PROTOCOL_VERSION, agree
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.parts import WorkerParts
from services.prefill_worker.session import HandoffSession
from services.prefill_worker.transfer import PrefillTransfer

MAX_TRANSFERS = 1024
MAX_SESSIONS = 256

_log = logs.get("prefill_worker")


class PrefillFront:
    """One prefill worker. `run` must run while streams are served."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._leases: LeaseTable[PrefillTransfer] = LeaseTable(
            parts.clock, max_leases=MAX_TRANSFERS
        )
        self._owners: dict[PrefillTransfer, HandoffSession] = {}
        self._sessions: dict[HandoffSession, None] = {}
        self._sampled: list[tuple[HandoffSession, PrefillTransfer]] = []
        self._is_draining = False
        self._audit = Audit()
        self._became_idle = asyncio.Event()
        parts.watch.on_change(self._core_stalled)
        parts.dispatcher.observe(self._end_of_step)
        parts.dispatcher.observe(lambda events: self._audit.found(events.violations))
        parts.dispatcher.observe(parts.metrics.observe)
        parts.dispatcher.observe(parts.reports.apply)

    @property
    def num_transfers(self) -> int:
        return len(self._owners)

    async def run(self) -> None:
        """Drive engine events and leases until cancelled. Raises CoreDied, in a group."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            group.create_task(self._audit.run(self.violations))
            group.create_task(self._parts.watch.run())
            try:
                await self._parts.dispatcher.run()
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
        session = HandoffSession(stream, self._parts, self, *agreed)
        self._sessions[session] = None
        try:
            await session.run()
        finally:
            self._sessions.pop(session, None)

    async def drain(self, cap_s: float) -> None:
        """Take nothing new, let what runs end within `cap_s`, then end all streams."""
        self._is_draining = True
        self._parts.reports.set_draining()
        try:
            async with asyncio.timeout(cap_s):
                while self._owners:
                    self._became_idle.clear()
                    await self._became_idle.wait()
        except TimeoutError:
            _log.warning("drain_cut_short", num_transfers=len(self._owners))
        async with asyncio.TaskGroup() as group:
            for session in self._sessions:
                group.create_task(session.finish("draining"))

    def check_integrity(self) -> None:
        """Asserts that every transfer has one lease and one owner, and every listener one."""
        self._leases.check_integrity()
        assert len(self._leases) == len(self._owners)
        assert all(transfer in self._leases for transfer in self._owners)
        num_seqs = sum(len(transfer.seq_ids) for transfer in self._owners)
        assert self._parts.dispatcher.num_open == num_seqs

    def violations(self) -> Iterator[Violation]:
        """Transfers without a lease or a live peer, and sequences without a transfer."""
        for transfer, session in self._owners.items():
            if session not in self._sessions:
                yield Violation("lease_without_owner", transfer.request_id, f"of {session.peer}")
            if transfer not in self._leases:
                yield Violation("transfer_without_lease", transfer.request_id, "")
        owned = {seq_id for transfer in self._owners for seq_id in transfer.seq_ids}
        for seq_id, request_id in self._parts.dispatcher.open_sequences():
            if seq_id not in owned:
                yield Violation("sequence_without_transfer", request_id, f"sequence {seq_id}")

    # What sessions ask (Keeper).

    def admit(self, session: HandoffSession, transfer: PrefillTransfer) -> None:
        if self._is_draining:
            raise failures.Unavailable("this prefill worker is draining", reason="draining")
        self._parts.watch.check()
        if not self._leases.can_grant():
            raise failures.Overloaded(f"{MAX_TRANSFERS} transfers are open already")
        self._leases.grant(transfer)
        self._owners[transfer] = session

    def renew(self, transfer: PrefillTransfer) -> None:
        self._leases.renew(transfer)

    def dismiss(self, transfer: PrefillTransfer) -> None:
        self._leases.release(transfer)
        del self._owners[transfer]
        if not self._owners:
            self._became_idle.set()

    def sampled(self, session: HandoffSession, transfer: PrefillTransfer) -> None:
        self._sampled.append((session, transfer))

    async def _exchange_hello(
        self, stream: FrameStream[handoff_pb2.DecodeFrame, OutFrame]
    ) -> tuple[handoff_pb2.DecodeHello, SendingEnd] | None:
        """The peer's hello and how to send; None when it was refused (and told so) or is gone."""
        first = await stream.read()
        if first is None or first.WhichOneof("frame") != "hello":
            return None
        parts = self._parts
        answer = handoff_pb2.PrefillHello(
            protocol=PROTOCOL_VERSION,
            worker_id=parts.worker_id,
            boot_epoch=parts.boot_epoch,
            model_fp=parts.dispatcher.info.model_fp,
            kv_spec=kv_spec.to_wire(parts.blocks.spec),
            tp_size=1,
        )
        peer, sending = str(first.hello.worker_id), None
        try:
            self._check_peer(first.hello)
            sending = parts.transports.accept(first.hello, answer)
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
        info = self._parts.dispatcher.info
        agree(hello.protocol, peer=hello.worker_id, own=self._parts.worker_id)
        if hello.model_fp != info.model_fp:
            raise failures.Incompatible(
                f"model_fp {hello.model_fp} of {hello.worker_id} != {info.model_fp} here"
            )
        difference = kv_spec.from_wire(hello.kv_spec).difference(self._parts.blocks.spec)
        if difference is not None:
            raise failures.Incompatible(f"kv_spec of {hello.worker_id}: {difference} here")
        if hello.tp_size > 1:
            raise failures.Incompatible(f"tp_size {hello.tp_size} != 1 here")
        if len(self._sessions) >= MAX_SESSIONS:
            raise failures.Overloaded(f"{MAX_SESSIONS} decode workers are connected already")

    def _core_stalled(self, stalled: bool) -> None:
        """What is computed here must be computed elsewhere; a core that wakes up drops it."""
        error = failures.Unavailable("the prefill core stands still", reason="handoff_failed")
        for transfer, session in list(self._owners.items()) if stalled else ():
            session.failed(transfer, error)

    async def _report_death(self, died: CoreDied) -> None:
        """Fail what is open, and name those that ran in the step in which the core died."""
        for transfer, session in list(self._owners.items()):
            error = failures.Unavailable(
                "the prefill core died",
                reason="handoff_failed",
                is_suspect=transfer.request_id in died.suspect_request_ids,
            )
            session.failed(transfer, error)
        async with asyncio.TaskGroup() as group:
            for session in self._sessions:
                group.create_task(session.finish("core died"))

    def _end_of_step(self, _: StepEvents) -> None:
        sampled, self._sampled = self._sampled, []
        for session, transfer in sampled:
            session.end_of_step(transfer)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            for transfer in self._leases.sweep():
                self._owners[transfer].expire(transfer)
