"""One bidirectional stream that carries the frames of many requests.

Three rules. One reader task per stream, and it never awaits a request's consumer. One writer task
(FrameWriter): control frames overtake queued ones, and the owner's `drain` merges what queues up
while a write is in flight. A clean end is announced by the owner's own Bye frame; an end without it
is a loss.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc

WRITE_TIMEOUT_S = 1.0

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

    async def read(self) -> Any:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message

    async def write(self, frame: Frame) -> None:
        await _write(self._context.write, frame)

    async def close(self) -> None:
        """Do nothing: the servicer method's return ends the stream."""


class ClientFrameStream(Generic[Frame]):
    """The dialling side, over a grpc.aio stream-stream call."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> Any:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError:
            return None
        return None if message is grpc.aio.EOF else message

    async def write(self, frame: Frame) -> None:
        await _write(self._call.write, frame)

    async def close(self) -> None:
        """Half-close: the call ends when the server returns or the owner cancels it."""
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            return  # the call has ended, or is about to

    def cancel(self) -> None:
        """Tear the call down now. Only for a stream that is lost or whose Bye was sent."""
        self._call.cancel()


async def _write(write: Callable[[Any], Any], frame: object) -> None:
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await write(frame)
    except TimeoutError as error:
        raise StreamLost(f"a write was blocked for {WRITE_TIMEOUT_S} s") from error
    except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
        raise StreamLost(type(error).__name__) from error


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
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
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
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled. Raises StreamLost."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (frame := self._next()) is not None:
                    await self._stream.write(frame)
                self._idle.set()
        finally:
            self._lost = True
            self._idle.set()

    async def flush(self) -> None:
        """Wait until everything that is queued now has been written, or the stream is lost."""
        await self._idle.wait()

    def _next(self) -> Frame | None:
        if self._control:
            return self._control.popleft()
        if self._queued:
            return self._queued.popleft()
        return self._drain()
