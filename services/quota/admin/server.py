"""uvicorn around the admin API, in the quota service's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

_MAX_CONNECTIONS = 64
_DRAIN_S = 2


class AdminServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process root has its own."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until(self, stopping: asyncio.Event, bound: socket.socket) -> None:
        """Serve until `stopping`. Raises what keeps it from serving."""
        asked = asyncio.create_task(self._end_when(stopping))
        try:
            await self.serve([bound])
        finally:
            asked.cancel()
            await asyncio.wait([asked])

    async def _end_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.should_exit = True
