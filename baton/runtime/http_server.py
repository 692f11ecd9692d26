"""uvicorn in the event loop of a service's process."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp


class LoopServer(uvicorn.Server):
    """uvicorn without its signal handlers, for the process root has its own. It logs no requests,
    and believes no header that names another client. `settings`: more of `uvicorn.Config`'s."""

    def __init__(self, app: ASGIApp, **settings: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                **settings,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until(self, stopping: asyncio.Event, bound: socket.socket) -> None:
        """Serve until `stopping`, then end as `drain` says. Raises what keeps it from serving."""
        asked = asyncio.create_task(self._drain_when(stopping))
        try:
            await self.serve([bound])
        finally:
            asked.cancel()
            await asyncio.wait([asked])

    def drain(self) -> None:
        """Take no new connection; `serve` returns once open requests have ended or time is up."""
        self.should_exit = True

    async def _drain_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.drain()
