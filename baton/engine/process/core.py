"""The core process: one thread that steps an Engine and talks to the front between steps.

A worker's `core_main` builds the runner and calls `serve`; the front's side is `process_client.py`.
Knows neither asyncio nor grpc. The progress page is written before each step, so that the front can
read which requests ran even when this process hangs or is dead (decision 0032).
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from baton.engine.protocol.messages import (
    Command,
    CommandBatch,
    CoreMessage,
    EngineInfo,
    LoadFailed,
    Shutdown,
    StepEvents,
)
from baton.engine.protocol.progress_page import PAGE_BYTES, ProgressPage
from baton.system.frames import FrameSocket, PeerClosed
from baton.system.memory_file import map_memory_file, resize_and_map_huge
from baton.system.parent_death import die_with_parent
from baton.system.prefault import prefault


class CoreEngine(Protocol):
    """An engine as the loop of its core process drives it."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def num_pool_rows(self) -> int:
        """The rows of the shared pool."""

    @property
    def has_work(self) -> bool:
        """Another turn could bring something without a new command."""

    def bind_pool(self, pool: memoryview) -> None:
        """Use this pool for what is handed over."""

    def warm_up(self) -> None:
        """Begin, once the front knows the engine, what a first request would have to wait for."""

    def turn(
        self,
        commands: Sequence[Command],
        page: ProgressPage,
        send: Callable[[StepEvents], None],
    ) -> None:
        """Apply the commands, run one step if there is something to compute, and send reports.

        The page is written before the step runs.
        """

    def next_deadline(self) -> float | None:
        """The time to take a turn although no command has come."""


class CoreLink:
    """The descriptors that the front gave this process: socket, pool file, progress page."""

    def __init__(self, socket_fd: int, pool_fd: int, page_fd: int) -> None:
        self.page = ProgressPage(map_memory_file(page_fd, PAGE_BYTES))
        os.close(page_fd)
        self._frames = FrameSocket(
            socket.socket(fileno=socket_fd), msgspec.msgpack.Decoder(CommandBatch)
        )
        self.pool_fd = pool_fd

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> tuple["CoreLink", list[str]]:
        """The link named by the first three arguments, and the other arguments."""
        die_with_parent()
        return cls(*map(int, argv[:3])), list(argv[3:])

    def create_pool(self, num_bytes: int) -> memoryview:
        """Size the shared pool and map it. Raises OSError when the machine has no room."""
        return resize_and_map_huge(self.pool_fd, num_bytes)

    def leave(self) -> None:
        """Leave the front to the process that this one was forked from."""
        self._frames.close()

    def send(self, message: CoreMessage) -> None:
        """Raises PeerClosed when the front is gone."""
        self._frames.send(message)

    def receive(self, timeout_s: float | None) -> list[Command]:
        """Commands that are there, or come within `timeout_s` (None = wait). Raises PeerClosed."""
        return [c for batch in self._frames.receive(timeout_s) for c in batch.commands]

    def refuse(self, message: str) -> None:
        """Say to the front in one line why this core cannot serve. The caller exits then."""
        self.send(LoadFailed(message))


def serve(link: CoreLink, engine: CoreEngine) -> None:
    """Map the pool, announce the engine, and step it until Shutdown or until the front is gone."""
    try:
        pool = link.create_pool(engine.num_pool_rows * engine.info.kv_spec.row_bytes)
        engine.bind_pool(pool)
        link.send(engine.info)
        engine.warm_up()
        prefault(pool)
        _loop(link, engine)
    except PeerClosed:
        return


def _loop(link: CoreLink, engine: CoreEngine) -> None:
    while True:
        commands = _next_commands(link, engine)
        link.page.count_commands(len(commands))
        if any(isinstance(command, Shutdown) for command in commands):
            return
        engine.turn(commands, link.page, link.send)


def _next_commands(link: CoreLink, engine: CoreEngine) -> list[Command]:
    """Take the commands that are there; with nothing to compute, wait for one or a deadline."""
    if engine.has_work:
        return link.receive(0)
    link.page.end_work()
    deadline = engine.next_deadline()
    return link.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
