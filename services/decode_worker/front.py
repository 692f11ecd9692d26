"""The decode worker's domain: takes gateway streams, owns the links to prefill workers, drains.

Knows no grpc and no torch; streams, dialling, clock and randomness are passed in.
"""

import asyncio

from baton.engine.client import CoreDied
from baton.engine.messages import StepEvents
from baton.runtime import logs
from baton.runtime.shared_stream import StreamLost
from baton.wire import failures
from baton.wire.protocol import PROTOCOL_VERSION, agree
from baton.wire.v1 import worker_pb2
from baton.worker.parts import WorkerParts
from services.decode_worker.prefill_link import Dial, PrefillLinks
from services.decode_worker.session import GatewaySession, GatewayStream

MAX_SESSIONS = 256
MAX_ATTEMPTS = 4096

_log = logs.get("decode_worker")


class DecodeFront:
    """One decode worker. `run` must run while streams are served."""

    def __init__(self, parts: WorkerParts, dial: Dial) -> None:
        self._parts = parts
        self._links = PrefillLinks(parts, dial)
        self._sessions: set[GatewaySession] = set()
        self._is_draining = False
        self._attempt_ended = asyncio.Event()
        parts.watch.on_change(self._core_stalled)
        parts.dispatcher.observe(self._end_of_step)
        parts.dispatcher.observe(parts.metrics.observe)
        parts.dispatcher.observe(parts.reports.apply)

    @property
    def num_attempts(self) -> int:
        return sum(session.num_attempts for session in self._sessions)

    async def run(self) -> None:
        """Drive engine events and prefill links until cancelled. Raises CoreDied, in a group."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._links.run())
            group.create_task(self._parts.grammar_gate.run())
            group.create_task(self._parts.watch.run())
            try:
                await self._parts.dispatcher.run()
            except CoreDied as died:
                # Before the links end: their transfers are lost because of this.
                await self._report_death(died)
                raise

    async def serve(self, stream: GatewayStream) -> None:
        """Serve one gateway's stream until it ends."""
        try:
            gateway_id = await self._exchange_hello(stream)
        except StreamLost:
            return
        if gateway_id is None:
            await stream.close()
            return
        session = GatewaySession(stream, self._parts, self._links, self, gateway_id)
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    async def drain(self, cap_s: float) -> None:
        """Take nothing new, let what runs end within `cap_s`, then end all streams."""
        self._is_draining = True
        self._parts.reports.set_draining()
        for session in self._sessions:
            session.send(worker_pb2.WorkerFrame(go_away={"deadline_ms": round(cap_s * 1000)}))
        try:
            async with asyncio.timeout(cap_s):
                while self.num_attempts:
                    self._attempt_ended.clear()
                    await self._attempt_ended.wait()
        except TimeoutError:
            _log.warning("drain_cut_short", num_attempts=self.num_attempts)
        for session in list(self._sessions):
            session.fail_all(failures.Unavailable("this worker is draining", reason="draining"))
        await self._finish_sessions("draining")
        await self._links.close("draining")

    def check_integrity(self) -> None:
        """Asserts that sequences and transfers belong to open attempts, and to nothing else."""
        if self.num_attempts == 0:
            assert self._parts.dispatcher.num_open == 0
            assert self._links.num_transfers == 0

    # What sessions ask (Doorkeeper).

    def check_admission(self) -> None:
        if self._is_draining:
            raise failures.Unavailable("this worker is draining", reason="draining")
        self._parts.watch.check()
        if self.num_attempts >= MAX_ATTEMPTS:
            raise failures.Overloaded(f"{MAX_ATTEMPTS} attempts are open already")

    def attempt_ended(self) -> None:
        self._attempt_ended.set()

    async def _exchange_hello(self, stream: GatewayStream) -> str | None:
        """The gateway's id, or None when it was refused (it has been told) or is gone."""
        first = await stream.read()
        if first is None or first.WhichOneof("frame") != "hello":
            return None
        parts = self._parts
        hello = worker_pb2.WorkerHello(
            protocol=PROTOCOL_VERSION,
            worker_id=parts.worker_id,
            boot_epoch=parts.boot_epoch,
            model_fp=parts.dispatcher.info.model_fp,
            suspect_request_ids=parts.last_suspects,
        )
        await stream.write(worker_pb2.WorkerFrame(hello=hello))
        gateway_id = str(first.hello.gateway_id)
        try:
            agree(first.hello.protocol, peer=gateway_id, own=parts.worker_id)
            if len(self._sessions) >= MAX_SESSIONS:
                raise failures.Overloaded(f"{MAX_SESSIONS} gateways are connected already")
        except failures.BatonError as error:
            _log.warning("gateway_refused", gateway=gateway_id, detail=error.message)
            await stream.write(worker_pb2.WorkerFrame(bye={"reason": error.message}))
            return None
        return gateway_id

    def _end_of_step(self, events: StepEvents) -> None:
        for session in self._sessions:
            session.merge.step = events.step

    def _core_stalled(self, stalled: bool) -> None:
        """What runs here must move to another worker now; a core that wakes up drops it."""
        error = failures.Unavailable("the engine core stands still", reason="worker_lost")
        for session in list(self._sessions) if stalled else ():
            session.fail_all(error)

    async def _report_death(self, died: CoreDied) -> None:
        """Tell every gateway that the core is gone, and which requests are suspects."""
        suspects = died.suspect_request_ids
        error = failures.Unavailable("the engine core died", reason="worker_lost")
        for session in list(self._sessions):
            session.send(worker_pb2.WorkerFrame(core_died={"suspect_request_ids": suspects}))
            session.fail_all(error)
        await self._finish_sessions("core died")

    async def _finish_sessions(self, reason: str) -> None:
        """Say Bye to all gateways at once: one that does not answer must not hold up the rest."""
        async with asyncio.TaskGroup() as group:
            for session in self._sessions:
                group.create_task(session.finish(reason))
