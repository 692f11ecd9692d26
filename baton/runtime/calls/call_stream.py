"""One stream of shared calls, to one replica: sends calls, and hands each answer to its caller.

Calls that are made within one turn of the event loop leave in one frame. A stream that ends fails
its open calls as Unanswered. Knows nothing of other replicas (shared_calls.py).
"""

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Protocol

import grpc

from baton.runtime import grpc_channel
from baton.runtime.calls.call_server import FRAME_BYTES
from baton.runtime.calls.parts import PART_BYTES, Joiner, TooLong, parts_of
from baton.runtime.shared_stream import ClientFrameStream, FrameWriter, StreamRunner
from baton.system.clock import Clock
from baton.wire.failures import BatonError, Unavailable, from_wire
from baton.wire.v1 import calls_pb2

# A timer that comes so late, and the time that an answer then has to be read.
_LATE_S, _SECOND_LOOK_S = 0.005, 0.02


class Unanswered(Unavailable):
    """The stream was lost before the answer came. The replica may have heard the call."""


class AnswerStream(Protocol):
    """A stream of calls as its caller sees it."""

    # Why it has ended, for the calls that are open then.
    failure: BatonError

    async def read(self) -> calls_pb2.AnswerFrame | None:
        """The next frame; None when the stream has ended."""

    async def write(self, frame: calls_pb2.CallFrame) -> None:
        """Hand one frame to the transport. Raises StreamLost."""

    async def close(self) -> None:
        """End the stream."""


class GrpcAnswerStream(ClientFrameStream[calls_pb2.CallFrame]):
    """An AnswerStream over gRPC."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.failure: BatonError = Unanswered("the peer ended the stream", retry_after_s=1)

    async def read(self) -> Any:
        try:
            return await super().read()
        except asyncio.CancelledError:
            # So ends a call whose channel is closed.
            if self._call.cancelled():
                return None
            raise

    async def close(self) -> None:
        if self._call.done() and not self._call.cancelled():
            await self._learn_why()
        self.cancel()

    async def _learn_why(self) -> None:
        code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.OK:
            return
        metadata = await self._call.trailing_metadata()
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details)
        self.failure = grpc_channel.failure_of(error)
        if grpc_channel.is_unanswered(error):
            self.failure = Unanswered(self.failure.message, retry_after_s=1)


class CallStream:
    """The calls of one stream. `on_change` is called when it has greeted, leaves, or has ended."""

    def __init__(
        self, stream: AnswerStream, clock: Clock, on_change: Callable[["CallStream"], None]
    ) -> None:
        self.server_id = ""
        self.is_leaving = False
        self.has_ended = False
        self._on_change = on_change
        self._stream = stream
        self._clock = clock
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        # Those that were not written yet, by id; of a long one what is left.
        self._calls: OrderedDict[int, Iterator[calls_pb2.Call]] = OrderedDict()
        self._joiner = Joiner()
        self._peer_takes_parts = False
        self._cancelled: list[int] = []
        self._writer = FrameWriter[calls_pb2.CallFrame](stream, drain=self._next_frame)
        self._task = asyncio.create_task(self._run())

    @property
    def num_waiting(self) -> int:
        """The calls that have no answer yet."""
        return len(self._waiting)

    async def call(self, call: calls_pb2.Call, request: bytes, wait_s: float) -> bytes:
        """Make a call, whose id and request are set here, and wait so long for its answer. Raises
        Unanswered, TimeoutError, and the BatonError that the peer raised."""
        if self.has_ended:
            raise self._stream.failure
        loop = asyncio.get_running_loop()
        call.id = next(self._ids)
        answered: asyncio.Future[bytes] = loop.create_future()
        self._waiting[call.id] = answered
        self._calls[call.id] = self._cut(call, request)
        self._writer.wake()
        timer = loop.call_later(wait_s, self._expire, answered, self._clock.now() + wait_s)
        try:
            return await answered
        finally:
            timer.cancel()
            # A failure in it refers to this frame, and so to the call.
            del answered
            if self._waiting.pop(call.id, None) is not None:
                self._cancel(call.id)
            self._end_if_left()

    async def close(self) -> None:
        """End the stream; its open calls fail."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def leave(self) -> None:
        """Make no more calls here; the stream ends with its last open one."""
        self.is_leaving = True
        self._end_if_left()

    async def _run(self) -> None:
        runner = StreamRunner(self._stream, self._writer, self._take)
        try:
            await runner.run()
        finally:
            self.has_ended = True
            waiting, self._waiting = self._waiting, {}
            for answered in waiting.values():
                if not answered.done():
                    answered.set_exception(self._stream.failure)
            self._on_change(self)

    def _take(self, frame: calls_pb2.AnswerFrame) -> bool:
        for answer in frame.answers:
            if not self._take_answer(answer):
                return False
        if frame.server_id or frame.is_leaving:
            self.server_id = frame.server_id or self.server_id
            self._peer_takes_parts |= frame.takes_parts
            self.is_leaving |= frame.is_leaving
            self._on_change(self)
            self._end_if_left()
        return True

    def _take_answer(self, answer: calls_pb2.Answer) -> bool:
        """Hand an answer, or the last part of one, to its caller; False when it is far too long."""
        answered = self._waiting.get(answer.id)
        if answered is None or answered.done():
            return True
        if answer.HasField("failure"):
            answered.set_exception(from_wire(answer.failure))
        else:
            try:
                whole = self._joiner.add(answer.id, answer.response, has_more=answer.has_more)
            except TooLong:
                return False
            if whole is None:
                return True
            answered.set_result(whole)
        del self._waiting[answer.id]
        return True

    def _cut(self, call: calls_pb2.Call, request: bytes) -> Iterator[calls_pb2.Call]:
        """The call with its request, in parts where that is long."""
        if not self._peer_takes_parts or len(request) <= PART_BYTES:
            call.request = request
            return iter((call,))
        parts = parts_of(request)
        call.request, call.has_more = next(parts)
        rest = (calls_pb2.Call(id=call.id, request=data, has_more=more) for data, more in parts)
        return chain((call,), rest)

    def _cancel(self, call_id: int) -> None:
        """Tell the peer that nobody waits for this call, of which it may have a part."""
        self._calls.pop(call_id, None)
        self._joiner.drop(call_id)
        self._cancelled.append(call_id)
        self._writer.wake()

    def _expire(self, answered: asyncio.Future[bytes], due_s: float) -> None:
        """Give up, but not at once when this comes late: the answer was held up, too."""
        if answered.done():
            return
        if self._clock.now() - due_s > _LATE_S:
            answered.get_loop().call_later(_SECOND_LOOK_S, self._expire, answered, math.inf)
        else:
            answered.set_exception(TimeoutError())

    def _end_if_left(self) -> None:
        if self.is_leaving and not self._waiting:
            self._task.cancel()

    def _next_frame(self) -> calls_pb2.CallFrame | None:
        if not self._calls and not self._cancelled:
            return None
        frame = calls_pb2.CallFrame(cancelled=self._cancelled, takes_parts=True)
        num_bytes = 0
        self._cancelled.clear()
        while self._calls and num_bytes < FRAME_BYTES:
            call_id, left = self._calls.popitem(last=False)
            call = next(left)
            if call.has_more:
                # Others go between.
                self._calls[call_id] = left
            num_bytes += len(call.request)
            frame.calls.append(call)
        return frame
