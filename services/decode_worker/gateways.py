"""The gateways that one worker serves: their links and attempts, and its links to prefill workers.

All that a decode worker does besides what every worker does (`front.py`); a prefill worker does the
same while it stands in for decode workers. Knows no grpc and no torch.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator

from baton.engine.protocol.messages import StepEvents
from baton.runtime import logs
from baton.runtime.shared_stream import StreamLost
from baton.system.violation import Violation
from baton.wire import failures
from baton.wire.protocol import PROTOCOL_VERSION, agree
from baton.wire.v1 import worker_pb2
from baton.worker.deps import WorkerDeps
from services.decode_worker.gateway_link import GatewayStream, LinkKey
from services.decode_worker.gateway_session import GatewaySession
from services.decode_worker.prefill_hello import Dial
from services.decode_worker.prefill_links import PrefillLinks

MAX_SESSIONS = 256
MAX_ATTEMPTS = 4096

_log = logs.get("decode_worker")


class Gateways:
    """The gateways of one worker. `check_admission` raises BatonError while it takes nothing new;
    the tasks of `background_tasks` must run while streams are served."""

    def __init__(self, deps: WorkerDeps, dial: Dial, check_admission: Callable[[], None]) -> None:
        self._deps = deps
        self._check_worker = check_admission
        self._links = PrefillLinks(deps, dial)
        self._sessions: dict[LinkKey, GatewaySession] = {}
        self._session_changed = asyncio.Event()
        deps.dispatcher.observe(self._end_of_step)

    @property
    def num_attempts(self) -> int:
        return sum(session.num_attempts for session in self._sessions.values())

    @property
    def num_transfers(self) -> int:
        """The handoffs that these attempts wait for."""
        return self._links.num_transfers

    def open_request_ids(self) -> set[str]:
        """The requests of the open attempts."""
        return {rid for each in self._sessions.values() for rid in each.open_request_ids()}

    def background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        return self._links.run(), self._deps.grammar_gate.run()

    def violations(self) -> Iterator[Violation]:
        """Attempts that cannot end, and transfers that no attempt owns."""
        owners = self.open_request_ids()
        for request_id in self._links.open_request_ids():
            if request_id not in owners:
                yield Violation("transfer_without_attempt", request_id, "")
        in_engine = {request_id for _, request_id in self._deps.dispatcher.open_sequences()}
        for request_id in owners - in_engine:
            yield Violation("attempt_without_sequence", request_id, "nothing will end it")

    async def serve(self, stream: GatewayStream) -> None:
        """Serve one connection of a gateway until it ends."""
        try:
            first = await stream.read()
            if first is not None and first.WhichOneof("frame") == "hello":
                await self._answer(stream, first.hello)
        except StreamLost:
            return
        await stream.close()

    def go_away(self, limit_s: float) -> None:
        """Tell all gateways that this worker ends what runs here within `limit_s`."""
        frame = {"deadline_ms": round(limit_s * 1000)}
        for session in self._sessions.values():
            session.link.send(worker_pb2.WorkerFrame(go_away=frame))

    def core_died(self, suspect_request_ids: tuple[str, ...]) -> None:
        """Tell all gateways, and fail their attempts; the suspects ran when the core died."""
        frame = {"suspect_request_ids": suspect_request_ids}
        for session in self._sessions.values():
            session.link.send(worker_pb2.WorkerFrame(core_died=frame))
        self.fail_all(failures.Unavailable("the engine core died", reason="worker_lost"))

    def core_stalled(self) -> None:
        """Fail all attempts: they move to another worker."""
        self.fail_all(failures.Unavailable("the engine core stands still", reason="worker_lost"))

    def fail_all(self, error: failures.BatonError) -> None:
        for session in list(self._sessions.values()):
            session.fail_all(error)

    async def wait_until_idle(self) -> None:
        """Wait until no attempt is open, and all that was told is on its way."""
        while any(session.is_busy for session in self._sessions.values()):
            self._session_changed.clear()
            await self._session_changed.wait()

    def drain_cut_short(self) -> None:
        """Log how much is still open at the limit of the drain, and fail it."""
        _log.warning("drain_cut_short", num_attempts=self.num_attempts)
        self.fail_all(failures.Unavailable("this worker is draining", reason="draining"))

    async def finish_streams(self, reason: str) -> None:
        """Say Bye to all gateways at once."""
        async with asyncio.TaskGroup() as group:
            for session in self._sessions.values():
                group.create_task(session.link.finish(reason))

    async def close_links(self, reason: str) -> None:
        """Say Bye to all prefill workers."""
        await self._links.close(reason)

    def _check_admission(self) -> None:
        self._check_worker()
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
