"""One bidirectional stream that carries the frames of many requests.

Three rules. One reader task per stream (StreamRunner), which never awaits a request's consumer:
frames go to a synchronous handler. One writer task (FrameWriter): control frames overtake queued
ones, and the owner's `drain` merges what queues up while a write is in flight. A clean end is
announced by the owner's own Bye frame; an end without it is a loss. Knows nothing of what the
frames mean.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc

from baton.runtime import logs

WRITE_TIMEOUT_S = 1.0
FINISH_TIMEOUT_S = 1.0
# Dialling again does not help against these, and an operator must hear of them.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_log = logs.get("runtime")

In = TypeVar("In", covariant=True)
Out = TypeVar("Out", contravariant=True)
Frame = TypeVar("Frame")


class StreamLost(Exception):
    """The stream broke, or a write was blocked for longer than WRITE_TIMEOUT_S."""


class FrameStream(Protocol[In, Out]):
    """One side of a stream."""

    async def read(self) -> In | None:
        """The next frame; None when the stream has ended, cleanly or not."""

    async def write(self, frame: Out) -> None:
        """Hand one frame to the transport. Raises StreamLost."""

    async def close(self) -> None:
        """End this side. Reads of the peer return None."""


class ServerFrameStream(Generic[Frame]):
    """The server's side, over a grpc.aio servicer context."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._write = TimedWrite(context)

    async def read(self) -> Any:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message

    async def write(self, frame: Frame) -> None:
        await self._write(frame)

    async def close(self) -> None:
        """Do nothing: the servicer method's return ends the stream."""


class ClientFrameStream(Generic[Frame]):
    """The dialling side, over a grpc.aio stream-stream call."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._write = TimedWrite(call)

    async def read(self) -> Any:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            _tell_refusal(error)
            return None
        return None if message is grpc.aio.EOF else message

    async def write(self, frame: Frame) -> None:
        await self._write(frame)

    async def close(self) -> None:
        """Half-close: the call ends when the server returns or the owner cancels it."""
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            return  # the call has ended, or is about to

    def cancel(self) -> None:
        """Tear the call down now. Only for a stream that is lost or whose Bye was sent."""
        self._call.cancel()


class TimedWrite:
    """Writes one frame after the other; one that is blocked for WRITE_TIMEOUT_S is given up, at
    twice that time at the latest.

    Almost none is blocked. So one timer runs over all writes, and looks from time to time whether
    the write that it saw before is still the last.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._task: asyncio.Task[Any] | None = None
        self._num_writes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_blocked = False

    async def __call__(self, frame: object) -> None:
        """Hand one frame to gRPC. Raises StreamLost."""
        task = asyncio.current_task()
        assert task is not None, "frames are written by tasks"
        self._task, num_cancels = task, task.cancelling()
        self._num_writes += 1
        if self._timer is None:
            self._look_later()
        try:
            await self._call.write(frame)
        except asyncio.CancelledError:
            # Others may want the task to end as well.
            if self._is_blocked and task.uncancel() <= num_cancels:
                raise StreamLost(f"a write was blocked for {WRITE_TIMEOUT_S} s") from None
            raise
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            if isinstance(error, grpc.aio.AioRpcError):
                _tell_refusal(error)
            raise StreamLost(type(error).__name__) from error
        finally:
            self._task = None

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WRITE_TIMEOUT_S, self._look, self._num_writes)

    def _look(self, num_writes: int) -> None:
        """End the write that was the last one before, too; look at a newer one later."""
        self._timer = None
        if self._task is None:
            return
        if self._num_writes == num_writes:
            self._is_blocked = True
            self._task.cancel()
        else:
            self._look_later()


def _tell_refusal(error: grpc.aio.AioRpcError) -> None:
    """Log that the peer took no stream, and its reason."""
    if error.code() in _REFUSALS:
        _log.warning("stream_refused", status=error.code().name, reason=error.details())


class FrameWriter(Generic[Frame]):
    """The one writer of a stream. `send` and `send_control` never block.

    Order: control frames, then queued frames, then the frames of `drain`, which is called again
    after each write until it returns None. Owners keep merged state (tokens, credits) and build one
    frame from all of it in `drain`; `wake` says that there is some.
    """

    def __init__(
        self,
        stream: FrameStream[Any, Frame],
        *,
        max_queued: int = 4096,
        drain: Callable[[], Frame | None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._max_queued = max_queued
        self._drain = drain
        self._control: deque[Frame] = deque()
        self._queued: deque[Frame] = deque()
        self._has_more = False
        self._is_idle = True
        # Of the writer, which waits for more, and of those that wait for the writer.
        self._waiter: asyncio.Future[None] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._lost = False

    def send(self, frame: Frame) -> None:
        """Queue a frame. Raises StreamLost when `max_queued` frames wait: the peer is stuck."""
        if self._lost or len(self._queued) >= self._max_queued:
            raise StreamLost("the stream takes no more frames")
        self._queued.append(frame)
        self.wake()

    def send_control(self, frame: Frame) -> None:
        """Queue a frame that overtakes all queued ones (cancel, abort, first token)."""
        if self._lost or len(self._control) >= self._max_queued:
            raise StreamLost("the stream takes no more frames")
        self._control.append(frame)
        self.wake()

    def wake(self) -> None:
        """Say that `drain` has something to write."""
        self._has_more, self._is_idle = True, False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def run(self) -> None:
        """Write until cancelled. Raises StreamLost."""
        write = self._stream.write
        try:
            while True:
                if not self._has_more:
                    await self._more()
                self._has_more = False
                while (frame := self._next()) is not None:
                    await write(frame)
                self._rest()
        finally:
            self._lost = True
            self._rest()

    async def flush(self) -> None:
        """Wait until everything that is queued now has been written, or the stream is lost."""
        if not (self._is_idle or self._lost):
            if self._flushed is None:
                self._flushed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._flushed)

    async def _more(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _rest(self) -> None:
        """Note that everything has been written."""
        self._is_idle = True
        if self._flushed is not None:
            self._flushed.set_result(None)
            self._flushed = None

    def _next(self) -> Frame | None:
        if self._control:
            return self._control.popleft()
        if self._queued:
            return self._queued.popleft()
        return self._drain()


class StreamRunner(Generic[Frame]):
    """Runs one shared stream: its reader task, its writer task, and a clean end.

    `on_frame` returns False when the peer has said Bye: then the stream ends.
    """

    def __init__(
        self,
        stream: FrameStream[Any, Frame],
        writer: FrameWriter[Frame],
        on_frame: Callable[[Any], bool],
    ) -> None:
        self._stream = stream
        self.writer = writer
        self._on_frame = on_frame
        self._ended = asyncio.Event()
        self._said_bye = False
        self.was_lost = False

    async def run(self) -> None:
        """Serve until the peer's Bye, the loss of the stream (`was_lost`), or `finish`."""
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self.writer.run())
                reading = group.create_task(self._read())
                await self._ended.wait()
                writing.cancel()
                reading.cancel()
        except* StreamLost:
            self.was_lost = True
        finally:
            # Cancelled before the end came: the transport broke under its handler.
            self.was_lost |= not self._ended.is_set()
            await self._stream.close()

    def stop_lost(self) -> None:
        """The writer takes no more frames: end now, without a word."""
        self.was_lost = True
        self._ended.set()

    async def finish(self, bye: Frame) -> None:
        """Write what is queued and then `bye`, and wait a moment for the peer to end as well."""
        self._said_bye = True
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                # What the writer's drain has still to give goes before a queued frame would.
                await self.writer.flush()
                self.writer.send(bye)
                await self.writer.flush()
                await self._ended.wait()
        except StreamLost:
            self.was_lost = True
        except TimeoutError:
            pass
        self._ended.set()

    async def _read(self) -> None:
        while (frame := await self._stream.read()) is not None:
            if not self._on_frame(frame):
                break
        else:
            self.was_lost = not self._said_bye
        self._ended.set()
