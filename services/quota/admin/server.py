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
        """Serve until `stopping`."""
        serving = asyncio.create_task(self.serve([bound]))
        await stopping.wait()
        self.should_exit = True
        await serving


def listening_socket(listen: str) -> socket.socket:
    """A socket bound to "host:port". Raises OSError."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host.strip("[]"), int(port)))
    bound.setblocking(False)
    return bound
