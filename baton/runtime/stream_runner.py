"""Run one shared stream: one reader task, one writer task, and a clean end.

Frames go to a synchronous handler, so that the reader never awaits a request's consumer. Knows
nothing of what the frames mean, except that the owner says whether a Bye has come.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from baton.runtime.shared_stream import FrameStream, FrameWriter, StreamLost

FINISH_TIMEOUT_S = 1.0

Frame = TypeVar("Frame")


class StreamRunner(Generic[Frame]):
    """`on_frame` returns False when the peer has said Bye: then the stream ends."""

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
