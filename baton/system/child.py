"""A killable child process that answers one request of bytes at a time.

For work that must not run in this process because its cost or behaviour cannot be trusted:
rendering a template, compiling a regular expression. The child gets a memory limit, none of this
process's environment except ENVIRONMENT, and dies with its parent; a call that runs past its
deadline kills it, and the next call starts a fresh one, at most `max_starts` in `start_window_s`.
A caller that leaves leaves no work behind: a child that has not answered ABANDON_GRACE_S later is
killed, too.
Frames of msgpack travel over a socket pair; no pickle. Knows nothing of what the bytes mean.
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

from baton.system.frames import HEADER_BYTES, MAX_FRAME_BYTES, encode_frame

# What a child may know of its parent's environment: enough to find Python, the locale and the zone.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_TIME", "TZ")
BOOTSTRAP = "baton.system.child_bootstrap"
READY = 0
# A child that closed its end is about to exit: wait that long for its exit code.
EXIT_GRACE_S = 1.0
# Most answers take less; starting a child takes more.
ABANDON_GRACE_S = 0.1

_encoder = msgspec.msgpack.Encoder()


class ChildFrame(msgspec.Struct, array_like=True):
    """One message either way; an answer carries its request's number, READY is the first one."""

    number: int
    data: bytes


_decoder = msgspec.msgpack.Decoder(ChildFrame)


class ChildFailed(Exception):
    """Base of what can go wrong with a child."""


class ChildTimedOut(ChildFailed):
    """The child did not answer in time and was killed."""


class ChildDied(ChildFailed):
    """The child ended by itself, for example at its memory limit."""


class ChildRestartsExhausted(ChildFailed):
    """The child was started too often; it stays down until the window has passed."""


@dataclass(frozen=True)
class ChildLimits:
    """What one child may use. `memory_bytes` limits its address space (where the system can)."""

    memory_bytes: int = 512 * 1024 * 1024
    start_deadline_s: float = 30.0
    max_starts: int = 20
    start_window_s: float = 60.0


class ChildProcess:
    """One child running `module`, whose `build_handler(setup: bytes)` returns (handler, reply).

    `handler` maps the bytes of a request to the bytes of its answer. `setup` is given to every
    fresh child; its reply is `setup_reply`. Calls queue; use one instance in one event loop.
    """

    def __init__(self, module: str, *, setup: bytes = b"", limits: ChildLimits | None = None):
        self._module = module
        self._setup = setup
        self._limits = limits or ChildLimits()
        self._lock = asyncio.Lock()
        self._starts: deque[float] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._last_number = READY
        self.setup_reply = b""

    @property
    def pid(self) -> int | None:
        """Process id of the running child, None when there is none."""
        return self._process.pid if self._process else None

    async def start(self) -> bytes:
        """Start the child now instead of at the first call; returns its reply to `setup`."""
        async with self._lock:
            await self._ensure_started()
            return self.setup_reply

    async def call(self, request: bytes, *, deadline_s: float) -> bytes:
        """The child's answer. Raises ChildTimedOut, ChildDied, ChildRestartsExhausted.

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
        """Kill the child, if any. A later call would start a new one."""
        async with self._lock:
            await self._kill()

    async def _ensure_started(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        await self._kill()
        self._count_start(asyncio.get_running_loop().time())
        try:
            await self._spawn()
            self.setup_reply = await self._exchange(
                READY, self._setup, self._limits.start_deadline_s
            )
        except asyncio.CancelledError:
            self._forgive_start()
            await self._kill()
            raise

    async def _abandon(self, number: int) -> None:
        """Nobody wants the answer: have the child free, or gone."""
        is_free = False
        try:
            async with asyncio.timeout(ABANDON_GRACE_S):
                await self._read_answer(number)
            is_free = True
        except (TimeoutError, OSError, EOFError, ValueError):
            self._forgive_start()
        finally:
            if not is_free:
                await self._kill()

    def _forgive_start(self) -> None:
        """A child that is killed because its caller left has not failed: the next one is free."""
        if self._starts:
            self._starts.pop()

    def _count_start(self, now_s: float) -> None:
        while self._starts and now_s - self._starts[0] > self._limits.start_window_s:
            self._starts.popleft()
        if len(self._starts) >= self._limits.max_starts:
            raise ChildRestartsExhausted(
                f"{self._module} was started {len(self._starts)} times"
                f" in {self._limits.start_window_s:g} s"
            )
        self._starts.append(now_s)

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = self._start_process(theirs.fileno())
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    def _start_process(self, socket_fd: int) -> "subprocess.Popen[bytes]":
        # Not the event loop's way: uvloop forks, and a fork runs gRPC's fork handlers, which crash
        # the child while calls are in flight. This is a vfork, which runs none.
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
        """End the child, at once or when it has not ended by itself; returns its exit code."""
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
            process.kill()  # also when this is cancelled; nothing happens to one that has ended
        return await asyncio.to_thread(process.wait)
