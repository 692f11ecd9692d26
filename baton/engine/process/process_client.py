"""The front's side of a core that runs as a child process: spawn, socket pair, shared memory.

The child gets three descriptors (commands and events, KV pool, progress page) as the first words of
its arguments, and its own process group, so that Ctrl-C reaches the front alone. It ends when the
front does, however that happens, and its own children, such as the ranks of an engine, end with it.
No pickle, no multiprocessing; `core.py` is the other end.
"""

import asyncio
import mmap
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from baton.engine.protocol.client import CoreDied, CoreNotStarted, ModelRefused
from baton.engine.protocol.messages import (
    Command,
    CommandBatch,
    CoreMessage,
    EngineInfo,
    LoadFailed,
    Shutdown,
    StepEvents,
)
from baton.engine.protocol.progress_page import (
    PAGE_BYTES,
    CoreProgress,
    ProgressPage,
    read_left_page,
)
from baton.system.cpu_wait import CpuWait
from baton.system.frames import FrameDecoder, encode_frame
from baton.system.memory_file import (
    create_memory_file,
    map_memory_file,
    open_sealed,
    resize_and_map,
)

MAX_UNREAD_MESSAGES = 1024  # then the core waits for the front
MAX_UNSENT_BYTES = 256 * 1024 * 1024  # then the core counts as hung
CLOSE_GRACE_S = 5.0
_EXIT_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The program of a core: which module, in which Python environment, with which variables.

    Front and core share no module but those of `baton`: an engine may have packages that the
    front's environment does not have.
    """

    module: str
    python: str = sys.executable
    # Beside those of this process.
    env: Mapping[str, str] = field(default_factory=dict)


class _CoreLink(asyncio.Protocol):
    """The front's end of the socket pair: decoded messages in, command batches out."""

    def __init__(self) -> None:
        self._frames = FrameDecoder(msgspec.msgpack.Decoder(CoreMessage))
        self._encoder = msgspec.msgpack.Encoder()
        self._messages: deque[EngineInfo | LoadFailed | StepEvents] = deque()
        self._commands: list[Command] = []
        self._arrived = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_lost = False
        self.num_commands_sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._messages += self._frames.feed(data)
        self._arrived.set()
        if len(self._messages) > MAX_UNREAD_MESSAGES and self._transport and not self._is_paused:
            self._transport.pause_reading()
            self._is_paused = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._arrived.set()

    def send(self, command: Command) -> None:
        if not self._commands:
            asyncio.get_running_loop().call_soon(self.flush)
        self._commands.append(command)

    def flush(self) -> None:
        """Write what was sent since the last flush as one batch."""
        if self._commands and self._transport and not self._is_lost:
            self._transport.write(encode_frame(self._encoder, CommandBatch(self._commands)))
            self.num_commands_sent += len(self._commands)
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self._transport.abort()
        self._commands = []

    async def receive(self) -> EngineInfo | LoadFailed | StepEvents | None:
        """The next message; None when the core has closed its end and all is read."""
        while not self._messages:
            if self._is_lost:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        if self._is_paused and self._transport and not self._messages:
            self._is_paused = False
            self._transport.resume_reading()
        return message

    def close(self) -> None:
        if self._transport:
            self._transport.close()


class ProcessEngineClient:
    """An EngineClient over a child process; `start` makes one."""

    info: EngineInfo
    pool: memoryview
    pool_fd: int | None = None
    # Requests of the step in which this worker's last life ended together with its core.
    last_suspects: tuple[str, ...] = ()

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        link: _CoreLink,
        page: ProgressPage,
        page_file: Path | None,
    ) -> None:
        self._process = process
        self._link = link
        self._page = page
        self._page_file = page_file
        self._cpu_wait = CpuWait(process.pid)
        self._is_ended = False

    @classmethod
    async def start(
        cls,
        spec: EngineSpec,
        args: Sequence[str] = (),
        *,
        load_timeout_s: float = 600.0,
        page_file: Path | None = None,
    ) -> "ProcessEngineClient":
        """Run the spec's module with SOCKET_FD POOL_FD PAGE_FD *args and wait until it serves.

        With `page_file` the progress page is kept there until `close`, so that the next life can
        read where this one was when it and its core died together (`last_suspects`). Raises
        CoreNotStarted, and OSError when that file cannot be written; nothing is left behind then.
        """
        with ExitStack() as files, ExitStack() as on_failure:
            last_suspects = () if page_file is None else read_left_page(page_file)
            pool_fd = _create_file(files, "baton-kv-pool")
            page_fd = _create_file(files, "baton-progress", page_file)
            page = ProgressPage(resize_and_map(page_fd, PAGE_BYTES))
            ours, theirs = socket.socketpair()
            files.enter_context(theirs)
            loop = asyncio.get_running_loop()
            transport, link = await loop.create_unix_connection(_CoreLink, sock=ours)
            on_failure.callback(transport.close)
            process = await _spawn(spec, args, (theirs.fileno(), pool_fd, page_fd))
            theirs.close()  # the child's death must end the connection
            client = cls(process, link, page, page_file)
            client.last_suspects = last_suspects
            await client._wait_until_loaded(load_timeout_s, pool_fd)
            on_failure.pop_all()
        return client

    @property
    def pid(self) -> int:
        """The core's process id."""
        return self._process.pid

    def send(self, command: Command) -> None:
        self._link.send(command)

    async def events(self) -> StepEvents:
        message = await self._link.receive()
        if message is None:
            suspects = self.progress().request_ids
            await self._end_process(_EXIT_GRACE_S)
            raise CoreDied(f"core exited with {self._process.returncode}", suspects)
        assert isinstance(message, StepEvents)
        return message

    @property
    def num_commands_sent(self) -> int:
        return self._link.num_commands_sent

    def progress(self) -> CoreProgress:
        return self._page.read()

    def starved_s(self, elapsed_s: float) -> float:
        return self._cpu_wait.last_s(elapsed_s)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._kill_group()

    async def close(self) -> None:
        self._link.send(Shutdown())
        self._link.flush()
        try:
            await self._end_process(CLOSE_GRACE_S)
        finally:
            self._link.close()
            if self.pool_fd is not None:
                os.close(self.pool_fd)
                self.pool_fd = None
            if self._page_file is not None:
                self._page_file.unlink(missing_ok=True)

    async def _wait_until_loaded(self, timeout_s: float, pool_fd: int) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._link.receive()
            if isinstance(message, LoadFailed):
                raise ModelRefused(message.message)
            if message is None:
                await self._end_process(_EXIT_GRACE_S)
                raise CoreNotStarted(f"core exited with {self._process.returncode} while loading")
            assert isinstance(message, EngineInfo)
            self.info = message
            self.pool = _map_pool(pool_fd)
            self.pool_fd = open_sealed(pool_fd)
        except TimeoutError:
            await self._kill()
            raise CoreNotStarted(f"core did not load its model in {timeout_s:g} s") from None
        except BaseException:
            await self._kill()
            raise

    async def _end_process(self, grace_s: float) -> None:
        """Wait for the core to exit by itself, then kill it, and what it leaves behind."""
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            await self._kill()
        if not self._is_ended:  # once: the group's id may be given to others afterwards
            self._is_ended = True
            self._kill_group()

    async def _kill(self) -> None:
        self.kill()
        await self._process.wait()

    def _kill_group(self) -> None:
        """Kill the core and its children; the core leads their group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _create_file(files: ExitStack, name: str, path: Path | None = None) -> int:
    """An empty file, in memory without a path, that this process holds until `files` ends."""
    if path is None:
        fd = create_memory_file(name)
    else:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    files.callback(os.close, fd)
    return fd


async def _spawn(
    spec: EngineSpec, args: Sequence[str], fds: Sequence[int]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        spec.python,
        "-m",
        spec.module,
        *map(str, fds),
        *args,
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
        env={**os.environ, **spec.env},
    )


def _map_pool(fd: int) -> memoryview:
    """The pool that the core has sized, mapped until its last memoryview is gone."""
    mapped: mmap.mmap = map_memory_file(fd, os.fstat(fd).st_size)
    return memoryview(mapped)
