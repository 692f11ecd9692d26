"""uvicorn around the app: a listening socket with a small send buffer, and a drain in order."""

import asyncio
import functools
import math
import socket
from collections.abc import Callable

from starlette.types import ASGIApp

from baton.runtime.http_server import LoopServer
from services.gateway.http.callers import HttpCallers
from services.gateway.http.protocol import BoundedHttpProtocol
from services.gateway.http.shared_listener import ProcessPlace, SharedListener

# Accepted sockets inherit this option, as all that are set here. With the default, megabytes of
# tokens pile up in the kernel before a client that stopped reading is noticed.
SEND_BUFFER_BYTES = 16 * 1024
_BACKLOG = 2048
_CLOSE = (b"connection", b"close")
_KEEP_ALIVE_S = 75


class HttpServer(LoopServer):
    """`place`: among several processes that accept from its sockets; None when it is the only one.
    `callers`: who alone may call, by TLS; None = anyone, in plain HTTP."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        drain_cap_s: float,
        stall_s: float,
        place: ProcessPlace | None = None,
        callers: HttpCallers | None = None,
    ) -> None:
        self._place = place
        protocol = functools.partial(BoundedHttpProtocol, stall_s=stall_s, callers=callers)
        super().__init__(
            app,
            http=protocol,
            ssl_context_factory=(lambda *_: callers.context()) if callers else None,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(drain_cap_s),
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._place is None or sockets is None:
            await super().startup(sockets)
            return
        make_protocol: Callable[[], asyncio.Protocol] = functools.partial(
            self.config.http_protocol_class,  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        connections = self.server_state.connections
        listeners = [
            SharedListener(bound, make_protocol, connections, self._place, self.config.ssl)
            for bound in sockets
        ]
        for listener in listeners:
            listener.start(_BACKLOG)
        self.servers = listeners  # type: ignore[assignment]
        self.started = True

    def announce_drain(self) -> None:
        """Let every response end its connection, so that the client's next one goes to another
        gateway."""
        self.config.encoded_headers.append(_CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
