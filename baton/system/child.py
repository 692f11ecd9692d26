"""A killable child process that answers one request of bytes at a time.

For work that must not run in this process because its cost or behaviour cannot be trusted:
rendering a template, compiling a regular expression. The child gets a memory limit, none of this
process's environment except ENVIRONMENT, and dies with its parent. A call that runs past its
deadline kills the child, and the next call starts a fresh one, at most `max_starts` in
`start_window_s`. A cancelled call leaves no work behind: a child that has not answered
ABANDON_GRACE_S later is killed as well. Frames of msgpack travel over a socket pair; no pickle.
Knows nothing of what the bytes mean.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from baton.system.clock import Clock
from baton.system.frames import HEADER_BYTES, MAX_FRAME_BYTES, encode_frame

# The variables that a child inherits: enough to find Python, the locale and the time zone.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_TIME", "TZ")
BOOTSTRAP = "baton.system.child_bootstrap"
READY = 0
# A child that closed its end is about to exit: its exit code is waited for this long.
EXIT_GRACE_S = 1.0
# Most answers take less time; starting a child takes more.
ABANDON_GRACE_S = 0.1

_encoder = msgspec.msgpack.Encoder()


class ChildFrame(msgspec.Struct, array_like=True):
    """One message in either direction.

    An answer carries the number of its request. READY is the number of the setup.
    """

    number: int
    data: bytes


_decoder = msgspec.msgpack.Decoder(ChildFrame)


class ChildFailed(Exception):
    """Base of the errors of a child."""


class ChildTimedOut(ChildFailed):
    """The child did not answer in time and was killed."""


class ChildDied(ChildFailed):
    """The child ended by itself, for example at its memory limit."""


class ChildRestartsExhausted(ChildFailed):
    """The child was started too often and stays down until the window has passed."""


@dataclass(frozen=True)
class ChildLimits:
    """Limits of one child. `memory_bytes` limits its address space, where the system can."""

    memory_bytes: int = 512 * 1024 * 1024
    start_deadline_s: float = 30.0
    max_starts: int = 20
    start_window_s: float = 60.0


class _StartLimiter:
    """Counts the starts of a child within a sliding window."""

    def __init__(self, max_starts: int, window_s: float, clock: Clock) -> None:
        self._max_starts = max_starts
        self._window_s = window_s
        self._clock = clock
        self._starts: deque[float] = deque()

    def count(self, module: str) -> None:
        """Count a start. Raises ChildRestartsExhausted, and counts nothing, at the limit."""
        now_s = self._clock.now()
        while self._starts and now_s - self._starts[0] > self._window_s:
            self._starts.popleft()
        if len(self._starts) >= self._max_starts:
            raise ChildRestartsExhausted(
                f"{module} was started {len(self._starts)} times in {self._window_s:g} s"
            )
        self._starts.append(now_s)

    def forgive(self) -> None:
        """Take back the last start: its child is killed because a caller left, not for a fault."""
        if self._starts:
            self._starts.pop()


class ChildProcess:
    """One child that runs `module`, whose `build_handler(setup: bytes)` returns (handler, reply).

    `handler` maps the bytes of a request to the bytes of its answer. `setup` is given to every
    fresh child; its reply is `setup_reply`. Calls queue; use one instance in one event loop.
    """

    def __init__(
        self, module: str, clock: Clock, *, setup: bytes = b"", limits: ChildLimits | None = None
    ) -> None:
        self._module = module
        self._setup = setup
        self._limits = limits or ChildLimits()
        self._lock = asyncio.Lock()
        self._starts = _StartLimiter(self._limits.max_starts, self._limits.start_window_s, clock)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._last_number = READY
        self.setup_reply = b""

    @property
    def pid(self) -> int | None:
        """Process id of the running child; None without one."""
        return self._process.pid if self._process else None

    async def start(self) -> bytes:
        """Start the child now instead of at the first call, and return its reply to `setup`."""
        async with self._lock:
            await self._ensure_started()
            return self.setup_reply

    async def call(self, request: bytes, *, deadline_s: float) -> bytes:
        """Return the child's answer. Raises ChildTimedOut, ChildDied, ChildRestartsExhausted.

        `deadline_s` counts from the moment that the child is free. When the call is cancelled, a
        child that does not answer at once is killed.
        """
        async with self._lock:
            await self._ensure_started()
            self._last_number += 1
            try:
                return await self._exchange(self._last_number, request, deadline_s)
            except asyncio.CancelledError:
                await self._abandon(self._last_number)
                raise

    async def close(self) -> None:
        """Kill the child, if there is one. A later call would start a fresh one."""
        async with self._lock:
            await self._kill()

    async def _ensure_started(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        await self._kill()
        self._starts.count(self._module)
        try:
            await self._spawn()
            self.setup_reply = await self._exchange(
                READY, self._setup, self._limits.start_deadline_s
            )
        except asyncio.CancelledError:
            self._starts.forgive()
            await self._kill()
            raise

    async def _abandon(self, number: int) -> None:
        """Drop the answer of a cancelled call: await it for a moment, else kill the child."""
        is_free = False
        try:
            async with asyncio.timeout(ABANDON_GRACE_S):
                await self._read_answer(number)
            is_free = True
        except (TimeoutError, OSError, EOFError, ValueError):
            self._starts.forgive()
        finally:
            if not is_free:
                await self._kill()

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = self._start_process(theirs.fileno())
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    def _start_process(self, socket_fd: int) -> "subprocess.Popen[bytes]":
        # subprocess and not asyncio: uvloop forks, and a fork runs gRPC's fork handlers, which
        # crash the child while calls are in flight. subprocess uses vfork, which runs none.
        return subprocess.Popen(
            self._command(),
            stdin=socket_fd,
            stdout=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        )

    def _command(self) -> Sequence[str]:
        memory_bytes = str(self._limits.memory_bytes)
        return (sys.executable, "-B", "-m", BOOTSTRAP, self._module, memory_bytes, str(os.getpid()))

    async def _exchange(self, number: int, request: bytes, deadline_s: float) -> bytes:
        try:
            async with asyncio.timeout(deadline_s):
                await self._write(ChildFrame(number, request))
                return await self._read_answer(number)
        except TimeoutError:
            await self._kill()
            raise ChildTimedOut(f"{self._module} did not answer in {deadline_s:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            code = await self._kill(grace_s=EXIT_GRACE_S)
            raise ChildDied(f"{self._module} ended with code {code}") from error

    async def _write(self, frame: ChildFrame) -> None:
        assert self._writer is not None
        self._writer.write(encode_frame(_encoder, frame))
        await self._writer.drain()

    async def _read_answer(self, number: int) -> bytes:
        while (frame := await self._read()).number != number:
            pass
        return frame.data

    async def _read(self) -> ChildFrame:
        assert self._reader is not None
        length = int.from_bytes(await self._reader.readexactly(HEADER_BYTES), "little")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
        return _decoder.decode(await self._reader.readexactly(length))

    async def _kill(self, grace_s: float = 0.0) -> int | None:
        """Kill the child unless it ends by itself within `grace_s`; returns its exit code."""
        process, writer = self._process, self._writer
        self._process = self._reader = self._writer = None
        if writer is not None:
            writer.close()
        if process is None:
            return None
        try:
            if grace_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        return await asyncio.to_thread(process.wait)
        finally:
            process.kill()  # also when this is cancelled; does nothing to an ended process
        return await asyncio.to_thread(process.wait)
