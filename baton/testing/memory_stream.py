"""Two joined FrameStreams in memory, for tests and the simulation: bounded, ordered, cuttable."""

import asyncio
from collections import deque
from typing import Any

from baton.runtime.shared_stream import StreamLost


class _Pipe:
    """One direction. Holds at most `max_frames` frames."""

    def __init__(self, max_frames: int) -> None:
        self.frames: deque[Any] = deque()
        self.max_frames = max_frames
        self.ended = False
        self.changed = asyncio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryStream:
    """One end; see `memory_stream_pair`. `num_written` counts the frames that went out."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.num_written = 0

    async def read(self) -> Any:
        pipe = self._incoming
        while not pipe.frames:
            if pipe.ended:
                return None
            await pipe.changed.wait()
        frame = pipe.frames.popleft()
        pipe.notify()
        return frame

    async def write(self, frame: Any) -> None:
        pipe = self._outgoing
        while len(pipe.frames) >= pipe.max_frames and not pipe.ended:
            await pipe.changed.wait()
        if pipe.ended:
            raise StreamLost("cut")
        pipe.frames.append(frame)
        self.num_written += 1
        pipe.notify()

    async def close(self) -> None:
        self._outgoing.ended = True
        self._outgoing.notify()

    def cancel(self) -> None:
        """Cut both directions now; frames in flight are lost."""
        for pipe in (self._incoming, self._outgoing):
            pipe.frames.clear()
            pipe.ended = True
            pipe.notify()


def memory_stream_pair(max_frames: int = 64) -> tuple[MemoryStream, MemoryStream]:
    """Two ends: what one writes the other reads."""
    there, back = _Pipe(max_frames), _Pipe(max_frames)
    return MemoryStream(back, there), MemoryStream(there, back)
