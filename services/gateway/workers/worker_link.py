"""The gateway's end of the shared stream to one decode worker.

One reader per stream takes Step columns apart into the attempts' buffers and never waits for a
consumer; one writer sends the frames that wait in workers/outgoing_frames.py.

The end of a stream without Bye is a loss of the connection, not of the worker: the link dials again
and both sides resume where they were (worker_connections.py), so that attempts notice only a pause.
A worker that cannot be reached soon, or has begun another life, is lost: every open attempt fails
with `worker_lost`, and its request decides how to go on. Knows no text, tenant or quota.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from baton.runtime import logs
from baton.runtime.resumable_link import ResumableLink
from baton.runtime.shared_stream import StreamLost, StreamRunner
from baton.system.clock import Clock
from baton.wire.failures import BatonError, Unavailable
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from services.gateway import instruments
from services.gateway.clients.protocols import Dial, WorkerStream
from services.gateway.routing.crash_record import Crashes
from services.gateway.workers.attempt import Attempt
from services.gateway.workers.outgoing_frames import OutgoingFrames
from services.gateway.workers.worker_connections import WorkerConnections, Writer

MAX_OPEN_ATTEMPTS = 16_384

_OVER = instruments.GATEWAY_DROPPED_ENTRIES.labels(instruments.DropCause.OVER)

_log = logs.get("worker_link")


def _ignore_go_away(left_s: float) -> None:
    """Do nothing: the link's owner does not migrate early."""


class WorkerLink:
    """One shared stream over as many connections as it takes. `run` it once; `submit` is allowed
    from the moment of creation. `number` distinguishes the links of one gateway.

    The attempts, the connections and the end of a link change together; so it has 14 attributes.
    """

    def __init__(
        self,
        worker: router_pb2.WorkerEndpoint,
        gateway_id: str,
        clock: Clock,
        number: int = 1,
        crashes: Crashes | None = None,
    ) -> None:
        self.worker = worker
        self.idle_since_s = clock.now()
        # No new attempts: the worker drains, or is lost.
        self.closed_to_new = False
        # Called when the worker drains, with the seconds until it cuts the streams that still run.
        self.on_go_away: Callable[[float], None] = _ignore_go_away
        self._clock = clock
        self._attempts: dict[int, Attempt] = {}
        self._last_handle = 0
        self._outgoing = OutgoingFrames(self._attempts)
        self._memory = ResumableLink(self._outgoing.next_frame, worker_pb2.GatewayFrame)
        hello = worker_pb2.GatewayHello(
            protocol=PROTOCOL_VERSION, gateway_id=gateway_id, link=number
        )
        self._connections = WorkerConnections(worker.endpoint, hello, self._memory, clock)
        # Learns of the suspects that a worker's hello names.
        self._crashes = crashes or Crashes()
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def num_open(self) -> int:
        return len(self._attempts)

    def open_attempts(self) -> list[Attempt]:
        """The attempts that were not forgotten."""
        return list(self._attempts.values())

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def submit(self, submit: worker_pb2.Submit) -> Attempt:
        """Queue a submit; this link sets its handle. Raises Unavailable when the link is closed
        to new attempts or full."""
        if self.closed_to_new or len(self._attempts) >= MAX_OPEN_ATTEMPTS:
            raise Unavailable("the worker takes no new requests", reason="draining")
        self._last_handle += 1
        submit.handle = self._last_handle
        attempt = Attempt(submit, self._clock, give=self._give, cancel=self._cancel)
        self._attempts[submit.handle] = attempt
        self._outgoing.submit(submit)
        self._memory.wake()
        return attempt

    def forget(self, attempt: Attempt) -> None:
        """Drop what still comes for an attempt: its request is over."""
        attempt.release()
        self._attempts.pop(attempt.key.handle, None)
        self._outgoing.drop_submit(attempt.key.handle)
        if not self._attempts:
            self.idle_since_s = self._clock.now()

    async def run(self, dial: Dial) -> None:
        """Dial, serve until the link ends, then fail the open attempts. Never raises BatonError."""
        failure: BatonError = Unavailable("the worker was lost", reason="worker_lost")
        self._task = asyncio.current_task()
        try:
            if self.closed_to_new:
                raise StreamLost("given up before it was dialled")
            stream, writer = await self._first(dial)
            while not await self._serve(stream, writer):
                stream, writer = await self._resume(dial)
        except (StreamLost, TimeoutError):
            _log.warning("worker_lost", worker_id=self.worker.worker_id, num_open=self.num_open)
        except BatonError as error:
            _log.warning("worker_refused", worker_id=self.worker.worker_id, reason=error.reason)
            failure = error
        finally:
            self._fail_all(failure)
            self._ended.set()

    def give_up(self) -> None:
        """End the link at once, although its stream may look alive: the worker is of no use.

        Should the worker wake up, what it sends is not read, and its attempts end with the stream.
        """
        self._fail_all(Unavailable("the worker stands still", reason="worker_lost"))
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until the link has ended."""
        await self._ended.wait()

    def close(self) -> None:
        """Say Bye once everything queued is written, and end."""
        self.closed_to_new = True
        self._closing.set()

    async def _first(self, dial: Dial) -> tuple[WorkerStream, Writer]:
        connection = await self._connections.first(dial)
        assert self._connections.worker_hello is not None, "the worker has said hello"
        self._crashes.name(self._connections.worker_hello.suspect_request_ids)
        return connection

    async def _resume(self, dial: Dial) -> tuple[WorkerStream, Writer]:
        if not self._attempts:
            raise StreamLost("the stream ended without Bye, and no attempt is open")
        _log.warning("worker_stream_lost", worker_id=self.worker.worker_id, num_open=self.num_open)
        return await self._connections.resume(dial)

    async def _serve(self, stream: WorkerStream, writer: Writer) -> bool:
        """Serve one connection until Bye, or until it is lost: then False."""
        runner = StreamRunner(stream, writer, self._on_frame)
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(self._say_bye(runner))
            await runner.run()
            closing.cancel()
        self._connections.lost()
        return not runner.was_lost

    async def _say_bye(self, runner: StreamRunner[worker_pb2.GatewayFrame]) -> None:
        await self._closing.wait()
        await runner.finish(worker_pb2.GatewayFrame(bye=worker_pb2.Bye(reason="idle")))

    def _on_frame(self, frame: worker_pb2.WorkerFrame) -> bool:
        """Returns False after the worker's Bye. Raises StreamLost as `_take_in` does."""
        return not self._take_in(frame)

    def _take_in(self, frame: worker_pb2.WorkerFrame) -> bool:
        """Take in one frame; True when the stream ends cleanly. Raises StreamLost when a frame is
        missing, or contradicts itself."""
        if not self._memory.take(frame):
            return False
        kind: str | None = frame.WhichOneof("frame")
        if kind == "step":
            self._take_step(frame.step)
        elif kind == "refused":
            attempt = self._attempts.get(frame.refused.handle)
            if attempt is not None:
                attempt.take_refusal(frame.refused)
        elif kind == "go_away":
            self.closed_to_new = True
            self.on_go_away(frame.go_away.deadline_ms / 1000)
        elif kind == "core_died":
            self._core_died(frozenset(frame.core_died.suspect_request_ids))
        return kind == "bye"

    def _abandon_all(self, message: str) -> NoReturn:
        """Give up all open attempts: what the worker computes is of no use."""
        for attempt in self.open_attempts():
            attempt.abandon(Unavailable(message, reason="worker_lost"))
        raise StreamLost(message)

    def _core_died(self, suspects: frozenset[str]) -> None:
        for attempt in list(self._attempts.values()):
            is_suspect = attempt.key.request_id in suspects
            message = "the worker's core died"
            attempt.fail(Unavailable(message, reason="worker_lost", is_suspect=is_suspect))

    def _fail_all(self, failure: BatonError) -> None:
        self.closed_to_new = True
        for attempt in list(self._attempts.values()):
            attempt.fail(failure)
        self._attempts.clear()

    def _take_step(self, step: worker_pb2.Step) -> None:
        ids = list(step.ids)
        counts = step.counts or [1] * len(step.handles)
        num_entries = {len(step.handles), len(step.choices), len(step.first_index), len(counts)}
        if len(num_entries) > 1 or sum(counts) != len(ids):
            self._abandon_all("the worker sent a step whose columns do not match")
        logprobs = {}
        touched: dict[int, Attempt] = {}
        for side in step.side:
            logprobs[side.handle, side.choice] = side.logprobs
            attempt = self._attempts.get(side.handle)
            if attempt is not None:
                touched[side.handle] = attempt
                attempt.take_prompt_logprobs(side.prompt_logprobs)
        start = 0
        for handle, choice, first_index, count in zip(
            step.handles, step.choices, step.first_index, counts, strict=True
        ):
            attempt = self._attempts.get(handle)
            if attempt is not None:
                touched[handle] = attempt
                new_ids = ids[start : start + count]
                new_logprobs = logprobs.get((handle, choice), ()) if logprobs else ()
                attempt.take_tokens(choice, first_index, new_ids, new_logprobs)
            else:
                _OVER.inc()
            start += count
        for side in step.side:
            attempt = self._attempts.get(side.handle)
            if attempt is not None:
                attempt.take_side(side)
        now_s = self._clock.now()
        for attempt in touched.values():
            attempt.end_frame(now_s)

    def _give(self, attempt: Attempt, choice: int, up_to_index: int) -> None:
        if attempt.key.handle in self._attempts:
            self._outgoing.credit(attempt.key.handle, choice, up_to_index)
            self._memory.wake()

    def _cancel(self, attempt: Attempt, choice: int | None) -> None:
        handle = attempt.key.handle
        if handle not in self._attempts or attempt.ended:
            return
        if choice is None and self._outgoing.is_unheard_of(handle):
            self.forget(attempt)
            attempt.fail(Unavailable("cancelled before it was sent", reason="cancelled"))
            return
        if choice is None:
            self._outgoing.cancel(attempt.key)
        else:
            self._outgoing.cancel_choice(handle, choice)
        self._memory.wake()
