"""uvicorn around the page, in its process's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate and its key, read once."""

    cert_file: Path
    key_file: Path


class PageServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process root has its own."""

    def __init__(
        self, app: ASGIApp, max_connections: int | None = None, tls: Tls | None = None
    ) -> None:
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
                limit_concurrency=max_connections,
                ssl_certfile=tls.cert_file if tls else None,
                ssl_keyfile=tls.key_file if tls else None,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until(self, stopping: asyncio.Event, bound: socket.socket) -> None:
        """Serve until `stopping`; what is open then is cut off."""
        serving = asyncio.create_task(self.serve([bound]))
        await stopping.wait()
        self.should_exit = self.force_exit = True
        await serving
