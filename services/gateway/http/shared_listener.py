"""Accepts connections of a socket from which other processes accept as well.

An event loop's own server takes all that wait, so that a client's ten connections would be in one
process. Here the process with the fewest connections takes the next one. The others leave it to
that process for a moment, and take it when it is still there: that process stands still.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass

from baton.runtime import logs
from baton.system.memory_file import create_memory_file, map_memory_file, resize_and_map

PAUSE_S = 0.001
# After a failure of `accept`: the process has no descriptor left.
_RETRY_S = 1.0
# One connection in so many may be too many: a burst of thousands is not shared out one by one.
_SLACK = 16
_SLOT_BYTES = 4
_AWAY = 2**32 - 1

_log = logs.get("processes")


class ConnectionCounts:
    """The numbers of open connections of all processes, in memory that they share. Each writes its
    own; the parent writes `left` for one that has ended."""

    def __init__(self, file: int, num_processes: int) -> None:
        self.file = file
        self._counts = memoryview(map_memory_file(file, _SLOT_BYTES * num_processes)).cast("I")

    @classmethod
    def create(cls, num_processes: int) -> "ConnectionCounts":
        """The counts of processes that have not begun."""
        file = create_memory_file("baton-connections")
        resize_and_map(file, _SLOT_BYTES * num_processes)
        counts = cls(file, num_processes)
        for number in range(num_processes):
            counts.left(number)
        return counts

    def left(self, number: int) -> None:
        """Note that a process accepts no connections."""
        self._counts[number] = _AWAY

    def is_turn_of(self, number: int, num_open: int) -> bool:
        """Note the connections of a process; True when no other one has clearly fewer."""
        self._counts[number] = num_open
        return num_open <= min(self._counts) + num_open // _SLACK


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """The place of one process among those that share a socket: its number, from 0."""

    number: int
    counts: ConnectionCounts


class SharedListener:
    """The place of an asyncio.Server, in one of the processes. `connections` are its open ones;
    `tls`: of a server that speaks it. Call `start` once, on the event loop."""

    def __init__(
        self,
        bound: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Collection[object],
        place: ProcessPlace,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._socket = bound
        self._make_protocol = make_protocol
        self._connections = connections
        self._counts = place.counts
        self._number = place.number
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # Accepted, and not among the connections yet.
        self._opening: set[asyncio.Task[object]] = set()

    def start(self, backlog: int) -> None:
        """Begin to accept."""
        self._socket.listen(backlog)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accept no more."""
        self._counts.left(self._number)
        self._loop.remove_reader(self._socket)
        if self._timer is not None:
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Wait for the connections that are being opened."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        """Accept what waits, as long as it is this process's turn."""
        while self._is_turn():
            if not self._accept_one():
                return
        self._pause(PAUSE_S)

    def _accept_late(self) -> None:
        """Accept one that the others have left for the length of a pause, and go on."""
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)
        if self._accept_one():
            self._accept()

    def _is_turn(self) -> bool:
        num_open = len(self._connections) + len(self._opening)
        return self._counts.is_turn_of(self._number, num_open)

    def _accept_one(self) -> bool:
        """False when no connection waits."""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return False
        except OSError as error:
            _log.error("cannot_accept", error=error.strerror)
            self._pause(_RETRY_S)
            return False
        connection.setblocking(False)
        opening = self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._tls)
        task: asyncio.Task[object] = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(seconds, self._accept_late)
