"""The admin port: /metrics, /livez, /readyz and a service's own pages, out of reach of clients.

Alive means that the event loop runs its callbacks; ready, that the service would take new work.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from baton.runtime.listening_socket import listening_socket

# An event loop that runs no callback for this long is stuck; a busy one takes less.
LIVE_TIMEOUT_S = 5.0

# A connection that says nothing for this long is closed, and one beyond this number at once.
IDLE_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 256

_OPENMETRICS = "application/openmetrics-text"

# Makes the JSON of a page on the service's event loop, where nothing changes meanwhile. It gets the
# rest of the path: "abc" for "/explain/abc" of the page "/explain". None = not found.
Page = Callable[[str], bytes | None]

# Makes any page but those of health, in a thread of its own, from its path and the `Accept` header.
# It returns status, type and body.
Relay = Callable[[str, str], tuple[int, str, bytes]]
# Makes a page of metrics.
Encoder = Callable[[CollectorRegistry], bytes]


def encoder(accept: str) -> tuple[Encoder, str]:
    """What makes a page of metrics for this `Accept` header, and the page's type. Those that accept
    OpenMetrics get it, with exemplars; names are the same in both formats."""
    is_open = any(each.split(";")[0].strip() == _OPENMETRICS for each in accept.split(","))
    # Without `escaping` the library writes vllm_ for vllm:.
    return choose_encoder(f"{_OPENMETRICS};version=1.0.0;escaping=allow-utf-8" if is_open else "")


class _Handler(BaseHTTPRequestHandler):
    server: "_AdminServer"
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        if self.path in ("/livez", "/healthz"):
            is_alive = self.server.comes_around(LIVE_TIMEOUT_S)
            self._answer_reason("" if is_alive else "the event loop is stuck")
        elif self.path == "/readyz":
            self._answer_reason(self.server.unready_reason())
        elif self.server.relay is not None:
            self._answer(*self.server.relay(self.path, self.headers.get("Accept", "")))
        elif self.path == "/metrics":
            self._answer_metrics()
        else:
            self._answer_page()

    def _answer_metrics(self) -> None:
        encode, content_type = encoder(self.headers.get("Accept", ""))
        self._answer(200, content_type, encode(REGISTRY))

    def _answer_page(self) -> None:
        name, _, rest = self.path.removeprefix("/").partition("/")
        page = self.server.pages.get(f"/{name}", _no_page)
        try:
            body = self.server.on_loop(partial(page, unquote(rest))).result(LIVE_TIMEOUT_S)
        except FutureTimeout:
            self._answer_reason("the event loop is stuck")
            return
        if body is None:
            self._answer(404, "text/plain", b"not found\n")
        else:
            self._answer(200, "application/json", body)

    def _answer_reason(self, reason: str) -> None:
        """Answer 200 without a reason, else 503 with it."""
        self._answer(503 if reason else 200, "text/plain", (reason or "ok").encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes are not worth a line."""


def _no_page(rest: str) -> None:
    """A page that is not there."""


class _AdminServer(ThreadingHTTPServer):
    """The server in its thread, with the event loop that it was started from."""

    daemon_threads = True

    # Of a process that shows the pages of others, in place of its own.
    relay: Relay | None = None

    def __init__(
        self, bound: socket.socket, unready_reason: Callable[[], str], pages: Mapping[str, Page]
    ) -> None:
        super().__init__(bound.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()
        self.unready_reason = unready_reason
        self.pages = pages
        self._loop = asyncio.get_running_loop()
        self._places = threading.Semaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if there is a place for it."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def on_loop(self, page: Callable[[], bytes | None]) -> "Future[bytes | None]":
        """Make a page on the event loop."""

        async def made() -> bytes | None:
            return page()

        return asyncio.run_coroutine_threadsafe(made(), self._loop)

    def comes_around(self, timeout_s: float) -> bool:
        """Ask the event loop to run a callback; True when it does within `timeout_s`."""
        ran = threading.Event()
        try:
            self._loop.call_soon_threadsafe(ran.set)
        except RuntimeError:
            return False  # closed
        return ran.wait(timeout_s)


def start_admin(
    listen: str,
    unready_reason: Callable[[], str] = lambda: "",
    pages: Mapping[str, Page] | None = None,
    relay: Relay | None = None,
) -> int:
    """Serve on `listen` (as `listening_socket` takes it) in a daemon thread; returns the port.

    Call it from the service's event loop. `unready_reason` is called from another thread; empty =
    ready. `pages` are the service's own, by the first part of their paths. With `relay` neither
    they nor this process's metrics are shown. Raises Misconfigured.
    """
    server = _AdminServer(listening_socket(listen), unready_reason, pages or {})
    server.relay = relay
    threading.Thread(target=server.serve_forever, name="admin", daemon=True).start()
    return int(server.socket.getsockname()[1])
