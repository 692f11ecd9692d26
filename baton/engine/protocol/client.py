"""A worker's core as its front knows it: send commands, read events, share the KV pool.

`engine/process/process_client.py` talks to a core in a child process; `testing/local_client.py`
runs the engine inside the front's own event loop, for simulations. Fronts are written against
`EngineClient` alone.
"""

from typing import Protocol

from baton.engine.protocol.messages import Command, EngineInfo, StepEvents
from baton.engine.protocol.progress_page import CoreProgress


class CoreNotStarted(Exception):
    """The core could not serve its model; the message is one line for a person."""


class ModelRefused(CoreNotStarted):
    """The core itself refused the model: starting it again would not help."""


class CoreDied(Exception):
    """The core is gone, and with it every sequence and block.

    `suspect_request_ids` are the requests of the step that it was in, empty when it was idle.
    """

    def __init__(self, message: str, suspect_request_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.suspect_request_ids = suspect_request_ids


class EngineClient(Protocol):
    """One core. `events` has one reader; `send` may be called from anywhere in its event loop."""

    info: EngineInfo
    # The shared pool, writable, in rows of `info.kv_spec.row_bytes`: `info.num_rows`, or as many as
    # blocks and maybe one that no sequence gets. Both processes see it. The front writes only into
    # rows that a remote sequence has and that has not started.
    pool: memoryview
    # The pool for peers to map: read-only, its size sealed; owned by the client. None = private.
    pool_fd: int | None

    def send(self, command: Command) -> None:
        """Queue a command; never blocks. What one turn of the loop sends leaves as one batch.

        Commands to a core that has died are dropped: `events` raises CoreDied.
        """

    async def events(self) -> StepEvents:
        """The next turn of the core that brought something. Raises CoreDied."""

    @property
    def num_commands_sent(self) -> int:
        """To be compared with `CoreProgress.num_commands`: the core takes them between steps."""

    def progress(self) -> CoreProgress:
        """Read the progress page."""

    def starved_s(self, elapsed_s: float) -> float:
        """The part of the last `elapsed_s` in which the core could have run and had no CPU."""

    def kill(self) -> None:
        """End the core at this instant, whatever it does: `events` raises CoreDied."""

    async def close(self) -> None:
        """End the core and wait until it is gone. Safe to call twice and after CoreDied."""
