"""The decode worker's domain: takes gateway streams, owns the links to prefill workers, drains.

Knows no grpc and no torch; streams, dialling, clock and randomness are passed in.
"""

import asyncio
from collections.abc import Iterator

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import StepEvents
from baton.runtime import logs
from baton.runtime.audit import Audit
from baton.runtime.shared_stream import StreamLost
from baton.system.violation import Violation
from baton.wire import failures
from baton.wire.protocol import PROTOCOL_VERSION, agree
from baton.wire.v1 import worker_pb2
from baton.worker.parts import WorkerDeps
from services.decode_worker.gateway_link import GatewayStream, LinkKey
from services.decode_worker.gateway_session import GatewaySession
from services.decode_worker.prefill_hello import Dial
from services.decode_worker.prefill_links import PrefillLinks

MAX_SESSIONS = 256
MAX_ATTEMPTS = 4096

_log = logs.get("decode_worker")


class DecodeFront:
    """One decode worker. `run` must run while streams are served."""

    def __init__(self, deps: WorkerDeps, dial: Dial) -> None:
        self._deps = deps
        self._links = PrefillLinks(deps, dial)
        self._sessions: dict[LinkKey, GatewaySession] = {}
        self._is_draining = False
        self._audit = Audit()
        self._session_changed = asyncio.Event()
        deps.watch.on_change(self._core_stalled)
        deps.dispatcher.observe(self._end_of_step)
        deps.dispatcher.observe(lambda events: self._audit.found(events.violations))
        deps.dispatcher.observe(deps.metrics.observe)
        deps.dispatcher.observe(deps.reports.apply)

    @property
    def num_attempts(self) -> int:
        return sum(session.num_attempts for session in self._sessions.values())

    async def run(self) -> None:
        """Drive engine events and prefill links until cancelled. Raises CoreDied, in a group."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._links.run())
            group.create_task(self._deps.grammar_gate.run())
            group.create_task(self._deps.watch.run())
            group.create_task(self._audit.run(self.violations))
            try:
                await self._deps.dispatcher.run()
            except CoreDied as died:
                # Before the links end: their transfers are lost because of this.
                await self._report_death(died)
                raise

    async def serve(self, stream: GatewayStream) -> None:
        """Serve one connection of a gateway until it ends."""
        try:
            first = await stream.read()
            if first is not None and first.WhichOneof("frame") == "hello":
                await self._answer(stream, first.hello)
        except StreamLost:
            return
        await stream.close()

    async def drain(self, cap_s: float) -> None:
        """Take nothing new, let what runs end within `cap_s`, then end all streams."""
        self._is_draining = True
        self._deps.reports.set_draining()
        for session in self._sessions.values():
            session.link.send(worker_pb2.WorkerFrame(go_away={"deadline_ms": round(cap_s * 1000)}))
        try:
            async with asyncio.timeout(cap_s):
                while any(session.is_busy for session in self._sessions.values()):
                    self._session_changed.clear()
                    await self._session_changed.wait()
        except TimeoutError:
            _log.warning("drain_cut_short", num_attempts=self.num_attempts)
        for session in list(self._sessions.values()):
            session.fail_all(failures.Unavailable("this worker is draining", reason="draining"))
        await self._finish_sessions("draining")
        await self._links.close("draining")

    def check_integrity(self) -> None:
        """Asserts that sequences and transfers belong to open attempts, and to nothing else."""
        if self.num_attempts == 0:
            assert self._deps.dispatcher.num_open == 0
            assert self._links.num_transfers == 0

    def violations(self) -> Iterator[Violation]:
        """Sequences and transfers that no attempt owns, and attempts that cannot end."""
        owners = {rid for each in self._sessions.values() for rid in each.open_request_ids()}
        sequences = dict(self._deps.dispatcher.open_sequences())
        for seq_id, request_id in sequences.items():
            if request_id not in owners:
                yield Violation("sequence_without_attempt", request_id, f"sequence {seq_id}")
        for request_id in self._links.open_request_ids():
            if request_id not in owners:
                yield Violation("transfer_without_attempt", request_id, "")
        for request_id in owners.difference(sequences.values()):
            yield Violation("attempt_without_sequence", request_id, "nothing will end it")

    def _check_admission(self) -> None:
        """Raises Unavailable while nothing new is taken."""
        if self._is_draining:
            raise failures.Unavailable("this worker is draining", reason="draining")
        self._deps.watch.check()
        if self.num_attempts >= MAX_ATTEMPTS:
            raise failures.Overloaded(f"{MAX_ATTEMPTS} attempts are open already")

    def _changed(self, session: GatewaySession) -> None:
        key = session.link.key
        if session.link.is_over and self._sessions.get(key) is session:
            del self._sessions[key]
        self._session_changed.set()

    async def _answer(self, stream: GatewayStream, hello: worker_pb2.GatewayHello) -> None:
        deps = self._deps
        answer = worker_pb2.WorkerHello(
            protocol=PROTOCOL_VERSION,
            worker_id=deps.worker_id,
            boot_epoch=deps.boot_epoch,
            model_fp=deps.dispatcher.info.model_fp,
            suspect_request_ids=deps.last_suspects,
        )
        try:
            await self._session_of(hello).link.serve(stream, hello, answer)
        except failures.BatonError as error:
            _log.warning("gateway_refused", gateway=hello.gateway_id, detail=error.message)
            await stream.write(worker_pb2.WorkerFrame(hello=answer))
            await stream.write(worker_pb2.WorkerFrame(bye={"reason": error.message}))

    def _session_of(self, hello: worker_pb2.GatewayHello) -> GatewaySession:
        """The session of the link that a hello begins or resumes. Raises BatonError."""
        agree(hello.protocol, peer=hello.gateway_id, own=self._deps.worker_id)
        key = (hello.gateway_id, hello.link)
        session = self._sessions.get(key)
        if hello.HasField("num_received"):
            if session is None:
                raise failures.Unavailable("there is nothing to resume", reason="worker_lost")
            return session
        if session is not None:
            session.link.abandon()
        if len(self._sessions) >= MAX_SESSIONS:
            raise failures.Overloaded(f"{MAX_SESSIONS} gateways are connected already")
        session = GatewaySession(self._deps, self._links, key, self._check_admission, self._changed)
        self._sessions[key] = session
        return session

    def _end_of_step(self, events: StepEvents) -> None:
        for session in self._sessions.values():
            session.end_of_step(events.step)

    def _core_stalled(self, stalled: bool) -> None:
        """What runs here must move to another worker now; a core that wakes up drops it."""
        error = failures.Unavailable("the engine core stands still", reason="worker_lost")
        for session in list(self._sessions.values()) if stalled else ():
            session.fail_all(error)

    async def _report_death(self, died: CoreDied) -> None:
        """Tell every gateway that the core is gone, and which requests are suspects."""
        suspects = died.suspect_request_ids
        error = failures.Unavailable("the engine core died", reason="worker_lost")
        for session in list(self._sessions.values()):
            session.link.send(worker_pb2.WorkerFrame(core_died={"suspect_request_ids": suspects}))
            session.fail_all(error)
        await self._finish_sessions("core died")

    async def _finish_sessions(self, reason: str) -> None:
        """Say Bye to all gateways at once: one that does not answer must not hold up the rest."""
        async with asyncio.TaskGroup() as group:
            for session in self._sessions.values():
                group.create_task(session.link.finish(reason))
