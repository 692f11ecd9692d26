"""uvicorn's connection, with bounds on the head of a request and with our own error bodies.

uvicorn and its parser keep a head of any size, for as long as a client takes to send it. Here a
head may have MAX_HEAD_BYTES and MAX_HEADERS, and must be complete HEAD_TIMEOUT_S after its first
byte (the first head: after connecting). It names one host. An HTTP/1.0 client, which knows no
chunks, has the end of its connection as the end of an answer of unknown length. The part of a
stream that a client has not read yet stays within WRITE_BUFFER_BYTES and the socket's own buffer.
When an answer has been written and its
client reads nothing of the rest for `stall_s`, the connection is cut. The kernel's limit for that,
TCP_USER_TIMEOUT, is of no use: it cuts a steady reader too, whose window opens a little at a time.
Knows nothing of paths and bodies.
"""

import asyncio
import select
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from baton.wire.failures import InvalidRequest
from baton.wire.limits import MAX_HEAD_KIB, MAX_HEADERS
from services.gateway.http.callers import HttpCallers
from services.gateway.openai.errors import error_body
from services.gateway.request import reports

MAX_HEAD_BYTES = MAX_HEAD_KIB * 1024
HEAD_TIMEOUT_S = 10.0
# A write waits when so many bytes are not sent yet: the socket's own buffer keeps a slow client
# busy. A chunk of an answer has 300 bytes, and uvloop needs three times that for each it keeps.
WRITE_BUFFER_BYTES = 2 * 1024
# The key, in an ASGI scope, of the function that cuts the connection: a close would wait for the
# client.
ABORT_KEY = "baton.abort"
# The key of the function that is true once the client has closed the connection.
HAS_LEFT_KEY = "baton.has_left"
# The key of the ResponseWriter.
WRITER_KEY = "baton.writer"
# Kubernetes' probes show no certificate.
READY_PATH = b"/readyz"
_CLOSED_EVENTS = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
# ": " and the end of line.
_HEADER_FRAME_BYTES = 4
_OLD_VERSION = "1.0"


class ResponseWriter:
    """Writes pieces of one response at once, past ASGI, which would need a task that waits."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def has_room(self) -> bool:
        """True while the client takes what is written; its response must have begun."""
        cycle = self._cycle
        return not (self._flow.write_paused or cycle.disconnected) and bool(cycle.chunked_encoding)

    def write(self, piece: bytes) -> None:
        """Write a piece that is not empty."""
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))


class BoundedHttpProtocol(HttpToolsProtocol):
    """One client's connection."""

    _in_head = True
    # The reason to refuse the head that is being received, when there is one.
    _refusal: InvalidRequest | None = None
    # Bytes of the head that is being received: those of complete lines, and all. The latter lack
    # the rest of a chunk in which an earlier request ended.
    _num_line_bytes = 0
    _num_chunk_bytes = 0
    _closed_poll: "select.poll | None" = None
    _timer: asyncio.TimerHandle | None = None
    _tail_timer: asyncio.TimerHandle | None = None

    # The reason for which the peer may not call; empty = it may.
    _stranger = ""

    def __init__(
        self, *arguments: Any, stall_s: float, callers: HttpCallers | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._stall_s = stall_s
        self._callers = callers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._callers is not None:
            self._stranger = self._callers.refusal(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._watch_tail(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if not (was_in_head and self._in_head) or self.transport.is_closing():
            return
        # The parser reports a header only once it is complete.
        self._num_chunk_bytes += len(data)
        if self._num_chunk_bytes > MAX_HEAD_BYTES:
            self._refusal = _too_large()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast(dict[str, Any], self.scope)
        scope[ABORT_KEY] = self.transport.abort
        scope[HAS_LEFT_KEY] = self._has_left
        if not self._in_head:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _HEADER_FRAME_BYTES)
        if len(self.headers) == MAX_HEADERS:
            self._refuse(_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        num_hosts = sum([name == b"host" for name, _ in self.headers])
        if num_hosts > 1 or (not num_hosts and self.parser.get_http_version() != _OLD_VERSION):
            message = f"{num_hosts} Host headers; a request has one"
            self._refuse(InvalidRequest(message, reason="invalid_http"))
        if self._stranger and self.url != READY_PATH:
            self._refuse(InvalidRequest(self._stranger, reason="caller_refused"))
        scope = cast(dict[str, Any], self.scope)
        super().on_headers_complete()
        scope[WRITER_KEY] = ResponseWriter(self.cycle)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_tail(self.transport.get_write_buffer_size())

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not an acceptable request, and close. `msg` is not used."""
        invalid = InvalidRequest("this is not a valid HTTP request", reason="invalid_http")
        error = self._refusal or invalid
        reports.of_refusal(error)
        body = error_body(error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.row.http_status] + head % len(body) + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        is_old = cycle.scope["http_version"] == _OLD_VERSION
        super()._start_asgi_task(cycle, partial(_without_chunks, cycle, app) if is_old else app)

    def _has_left(self) -> bool:
        """True when the client has closed the connection, also while the event loop, which would
        say so, is behind."""
        if self.transport.is_closing():
            return True
        if self._closed_poll is None:
            self._closed_poll = select.poll()
            number = self.transport.get_extra_info("socket").fileno()
            self._closed_poll.register(number, _CLOSED_EVENTS)
        return bool(self._closed_poll.poll(0))

    def _expect_head(self) -> None:
        self._in_head = True
        self._num_line_bytes = self._num_chunk_bytes = 0
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _count(self, num_bytes: int) -> None:
        self._num_line_bytes += num_bytes
        if self._num_line_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())

    def _refuse(self, refusal: InvalidRequest) -> None:
        self._refusal = refusal
        raise httptools.HttpParserError(refusal.message)

    def _watch_tail(self, num_left: int) -> None:
        """Check later the end of an answer of which `num_left` bytes are not sent yet."""
        if self._tail_timer is not None:
            self._tail_timer.cancel()
            self._tail_timer = None
        if num_left:
            self._tail_timer = self.loop.call_later(self._stall_s, self._look_at_tail, num_left)

    def _look_at_tail(self, num_before: int) -> None:
        num_left = self.transport.get_write_buffer_size()
        # While a next answer is written, the watch of its request checks.
        if num_left >= num_before and self.cycle.response_complete:
            self.transport.abort()
        else:
            self._watch_tail(num_left)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _without_chunks(
    cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any
) -> None:
    """Run the app so that its answer is written as it is, whatever length it has."""

    async def send_plain(message: Any) -> None:
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plain)


def _too_large() -> InvalidRequest:
    message = f"the headers exceed {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} lines"
    return InvalidRequest(message, reason="headers_too_large")
