"""The first code that runs in a child of `child.py`: sets its limits, then serves its parent.

`python -m baton.system.child_bootstrap MODULE MEMORY_BYTES PARENT_PID`, with the socket to the
parent as standard input. MODULE must offer `build_handler(setup: bytes) -> (handler, reply)`.
A handler that raises ends the child: expected failures belong into the answer. Only the kind and
place of such an error are printed, because its text may be a user's.
"""

import contextlib
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

import msgspec

from baton.system.child import READY, ChildFrame
from baton.system.frames import FrameSocket, PeerClosed
from baton.system.parent_death import die_with_parent

Handler = Callable[[bytes], bytes]


def main(module: str, memory_bytes: int, parent_pid: int) -> None:
    """Serve the parent until it closes its end."""
    sys.excepthook = _print_place_only
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(parent_pid)
    _limit(memory_bytes)
    frames = FrameSocket(socket.socket(fileno=0), msgspec.msgpack.Decoder(ChildFrame))
    with contextlib.suppress(PeerClosed):
        _serve(frames, module)


def _serve(frames: FrameSocket[ChildFrame], module: str) -> None:
    handler: Handler | None = None
    while True:
        for frame in frames.receive(None):
            if frame.number == READY:
                handler, answer = importlib.import_module(module).build_handler(frame.data)
            else:
                assert handler is not None
                answer = handler(frame.data)
            frames.send(ChildFrame(frame.number, answer))


def _end_with(parent_pid: int) -> None:
    # A closed socket ends an idle child when its parent is gone. A busy one needs this signal.
    die_with_parent()
    if os.getppid() != parent_pid:
        sys.exit(1)


def _limit(memory_bytes: int) -> None:
    # Not every system enforces both limits; where one is refused, the deadline still holds.
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))


def _print_place_only(
    kind: type[BaseException], _error: BaseException, trace: TracebackType | None
) -> None:
    frames = traceback.extract_tb(trace)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    print(f"child failed: {kind.__name__}{place}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
