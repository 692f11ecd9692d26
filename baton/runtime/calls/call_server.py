"""The side of shared calls that answers: one CallServer for each service, one session per stream.

Every call runs as a task of its own. Calls that arrive together are read in one frame, and answers
that are ready together leave in one: that is what makes them cheap. A caller that leaves, with a
word or with its stream, cancels its calls.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from opentelemetry.trace import SpanKind

from baton.runtime import logs
from baton.runtime.calls.parts import PART_BYTES, Joiner, TooLong, parts_of
from baton.runtime.cutoff import Cutoff
from baton.runtime.shared_stream import FrameStream, FrameWriter, StreamRunner
from baton.runtime.telemetry import Span, start_span
from baton.wire import failures
from baton.wire.call_methods import CallMethod
from baton.wire.v1 import calls_pb2

# One frame takes answers until it has so many bytes.
FRAME_BYTES = 256 * 1024
_REQUEST_ID_CHARS = 128
_log = logs.get("calls")


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """The words that come with a call. `timeout_s` is the time that the caller waits."""

    request_id: str
    traceparent: str
    timeout_s: float

    def span(self, name: str) -> Span:
        """The span of this side of the call, below the caller's."""
        return start_span(
            name,
            traceparent=self.traceparent,
            request_id=self.request_id,
            kind=SpanKind.SERVER,
        )


Handler = Callable[[Any, IncomingCall], Awaitable[Any]]


class CallServer:
    """Answers the calls of one service. `leaving` tells all callers to make new ones elsewhere."""

    def __init__(
        self, handlers: Mapping[CallMethod[Any, Any], Handler], leaving: Cutoff | None = None
    ) -> None:
        self._handlers = {
            method.name: (method.request, handler) for method, handler in handlers.items()
        }
        self._leaving = leaving or Cutoff()
        self._server_id = os.urandom(8).hex()

    async def serve(self, stream: FrameStream[calls_pb2.CallFrame, calls_pb2.AnswerFrame]) -> None:
        """Answer the calls of one stream, until it ends."""
        session = _Session(stream, self._answer, self._server_id)
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_leaving(session))
            try:
                await session.run()
            finally:
                session.cancel_all()
                telling.cancel()

    async def _tell_leaving(self, session: "_Session") -> None:
        await self._leaving.come()
        session.leave()

    async def _answer(self, call: calls_pb2.Call) -> bytes:
        found = self._handlers.get(call.method)
        if found is None:
            raise failures.Incompatible(f"this service does not answer {call.method[:64]!r}")
        kind, handler = found
        request_id = call.request_id[:_REQUEST_ID_CHARS]
        incoming = IncomingCall(request_id, call.traceparent, call.timeout_us / 1e6)
        response = await handler(kind.FromString(call.request), incoming)
        encoded: bytes = response.SerializeToString()
        return encoded


class _Session:
    """The calls of one stream that run, and the answers that were not written yet."""

    def __init__(
        self,
        stream: FrameStream[calls_pb2.CallFrame, calls_pb2.AnswerFrame],
        answer: Callable[[calls_pb2.Call], Awaitable[bytes]],
        server_id: str,
    ) -> None:
        self._answer = answer
        self._running: dict[int, asyncio.Task[None]] = {}
        # Those that were not written yet; of a long one what is left.
        self._answers: deque[Iterator[calls_pb2.Answer]] = deque()
        # The first parts of calls that are not complete, and what was joined of their requests.
        self._begun: dict[int, calls_pb2.Call] = {}
        self._joiner = Joiner()
        self._peer_takes_parts = False
        self._writer = FrameWriter[calls_pb2.AnswerFrame](stream, drain=self._next_frame)
        self._writer.send_control(calls_pb2.AnswerFrame(server_id=server_id, takes_parts=True))
        self._runner = StreamRunner(stream, self._writer, self._take)

    async def run(self) -> None:
        await self._runner.run()

    def leave(self) -> None:
        """Tell the caller to make its next calls elsewhere."""
        self._writer.send_control(calls_pb2.AnswerFrame(is_leaving=True))

    def cancel_all(self) -> None:
        """Cancel the calls that run: nobody waits for their answers."""
        for call_id in list(self._running):
            self._cancel(call_id)

    def _cancel(self, call_id: int) -> None:
        self._begun.pop(call_id, None)
        self._joiner.drop(call_id)
        task = self._running.pop(call_id, None)
        if task is not None:
            task.cancel()

    def _take(self, frame: calls_pb2.CallFrame) -> bool:
        self._peer_takes_parts |= frame.takes_parts
        for part in frame.calls:
            try:
                call = self._joined(part)
            except TooLong:
                return False
            if call is None:
                continue
            task = asyncio.create_task(self._run(call))
            self._running[call.id] = task
            task.add_done_callback(partial(self._ended, call))
        for call_id in frame.cancelled:
            self._cancel(call_id)
        return True

    def _joined(self, part: calls_pb2.Call) -> calls_pb2.Call | None:
        """The call that is complete with this part. Raises TooLong."""
        if not part.has_more and part.id not in self._begun:
            return part
        first = self._begun.setdefault(part.id, part)
        request = self._joiner.add(part.id, part.request, has_more=part.has_more)
        if request is None:
            return None
        del self._begun[part.id]
        first.request = request
        return first

    async def _run(self, call: calls_pb2.Call) -> None:
        try:
            answer = calls_pb2.Answer(id=call.id, response=await self._answer(call))
        except failures.BatonError as error:
            answer = calls_pb2.Answer(id=call.id, failure=failures.to_wire(error))
        self._send(answer)

    def _ended(self, call: calls_pb2.Call, task: asyncio.Task[None]) -> None:
        if self._running.pop(call.id, None) is None:
            return  # its caller has left
        if task.cancelled():
            failure: failures.BatonError = failures.Unavailable("the call was cancelled within")
        elif isinstance(bug := task.exception(), Exception):
            _log.bug("call_failed", bug, method=call.method, request_id=call.request_id)
            failure = failures.InternalFailure(f"a bug in {call.method}: {type(bug).__name__}")
        else:
            return
        self._send(calls_pb2.Answer(id=call.id, failure=failures.to_wire(failure)))

    def _send(self, answer: calls_pb2.Answer) -> None:
        self._answers.append(self._cut(answer))
        self._writer.wake()

    def _cut(self, answer: calls_pb2.Answer) -> Iterator[calls_pb2.Answer]:
        """The answer, in parts where it is long."""
        if not self._peer_takes_parts or answer.ByteSize() <= PART_BYTES:
            return iter((answer,))
        return (
            calls_pb2.Answer(id=answer.id, response=data, has_more=more)
            for data, more in parts_of(answer.response)
        )

    def _next_frame(self) -> calls_pb2.AnswerFrame | None:
        if not self._answers:
            return None
        frame, num_bytes = calls_pb2.AnswerFrame(), 0
        while self._answers and num_bytes < FRAME_BYTES:
            left = self._answers.popleft()
            answer = next(left)
            if answer.has_more:
                # Others go between.
                self._answers.append(left)
            num_bytes += len(answer.response)
            frame.answers.append(answer)
        return frame
