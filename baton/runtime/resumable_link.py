"""The memory of one end of a resumable link, for which a broken connection is only a pause.

Frames are numbered over all connections of a link (`seq`, from 1) and kept until the peer
acknowledges them, in the `ack` of any frame of its own. After a break each side's hello names the
last number that it took in, and the other side writes again what it had written after that. So
every frame arrives once and in order, over any number of connections.

Hello and bye are not numbered. New frames are held back while MAX_UNACKNOWLEDGED_FRAMES wait for
their ack. Knows nothing of what frames mean, of how long a break may last, and of which end dials.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from baton.runtime.shared_stream import FrameStream, FrameWriter, StreamLost

MAX_UNACKNOWLEDGED_FRAMES = 1024
# This many frames that were taken in and not acknowledged cause a frame that has only an ack.
ACK_FRAMES = 16


class Numbered(Protocol):
    """A protobuf message of a link: its own number, and the last number taken in."""

    seq: int
    ack: int


Frame = TypeVar("Frame", bound=Numbered)


class NotResumable(Exception):
    """The peer lacks frames that are no longer kept, or knows some that were never sent."""


class ResumableLink(Generic[Frame]):
    """One end of a link. `source` gives the next new frame or None; `blank` makes an empty one."""

    def __init__(self, source: Callable[[], Frame | None], blank: Callable[[], Frame]) -> None:
        # The last number taken in, which our own hello names.
        self.num_received = 0
        self._source = source
        self._blank = blank
        self._unacknowledged: deque[Frame] = deque()
        # Acknowledged frames, which have left the front of `_unacknowledged`.
        self._num_dropped = 0
        # Frames of `_unacknowledged` that were written on this connection.
        self._num_written = 0
        self._last_ack = 0
        self._writer: FrameWriter[Frame] | None = None

    @property
    def num_unacknowledged(self) -> int:
        return len(self._unacknowledged)

    def connect(self, stream: FrameStream[Any, Frame], num_taken: int) -> FrameWriter[Frame]:
        """The writer of a new connection to a peer that took in `num_taken` frames so far.

        The writer of the connection before must have ended. Raises NotResumable.
        """
        if not self._num_dropped <= num_taken <= self._num_dropped + len(self._unacknowledged):
            raise NotResumable(f"frames after {num_taken} are not kept")
        self._acknowledged(num_taken)
        self._num_written = 0
        self._writer = FrameWriter(stream, drain=self._next)
        self._writer.wake()
        return self._writer

    def wake(self) -> None:
        """Say that `source` has something to write."""
        if self._writer is not None:
            self._writer.wake()

    def take(self, frame: Numbered) -> bool:
        """Take in a received frame; True when it is new. Raises StreamLost when one is missing."""
        self._acknowledged(frame.ack)
        if not frame.seq:
            return True
        if frame.seq > self.num_received + 1:
            raise StreamLost(f"frame {frame.seq} came after {self.num_received}")
        if frame.seq <= self.num_received:
            return False
        self.num_received = frame.seq
        if self.num_received - self._last_ack >= ACK_FRAMES:
            self.wake()
        return True

    def _acknowledged(self, number: int) -> None:
        was_full = len(self._unacknowledged) >= MAX_UNACKNOWLEDGED_FRAMES
        while self._unacknowledged and self._num_dropped < number:
            self._unacknowledged.popleft()
            self._num_dropped += 1
            self._num_written = max(self._num_written - 1, 0)
        if was_full:
            self.wake()

    def _next(self) -> Frame | None:
        if self._num_written == len(self._unacknowledged) < MAX_UNACKNOWLEDGED_FRAMES:
            self._keep_new()
        if self._num_written < len(self._unacknowledged):
            frame = self._unacknowledged[self._num_written]
            self._num_written += 1
        elif self.num_received - self._last_ack >= ACK_FRAMES:
            frame = self._blank()
        else:
            return None
        frame.ack = self._last_ack = self.num_received
        return frame

    def _keep_new(self) -> None:
        frame = self._source()
        if frame is not None:
            frame.seq = self._num_dropped + len(self._unacknowledged) + 1
            self._unacknowledged.append(frame)
