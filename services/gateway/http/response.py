"""One HTTP response, written piece by piece: headers once, chunks, keep-alive comments, the end.

A client that reads nothing for `stall_s` has stalled, and its request ends; credit stopped long
before. Each write only notes when it began; `watch` runs beside the request and checks from time to
time, which is cheaper than a timer around every write.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import chain
from typing import Protocol

from baton.system.clock import Clock
from baton.wire.failures import BatonError, DeadlineExceeded
from baton.wire.metadata import REQUEST_ID
from baton.wire.v1 import failure_pb2
from services.gateway.http.request import JSON, Send
from services.gateway.openai.collected import PART_BYTES, gathered
from services.gateway.openai.errors import OPENAI, Dialect

STALL_S = 30.0
KEEP_ALIVE_S = 10.0
# Of an answer that may be given again to a repeated request.
MAX_KEPT_BYTES = 8 * 1024 * 1024
_SHORTEST_LOOK_S = 0.05
STALLED = "client_stalled"

EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Writer(Protocol):
    """Writes pieces of a response that has begun, without waiting."""

    @property
    def has_room(self) -> bool:
        """True while the client takes what is written."""

    def write(self, piece: bytes) -> None:
        """Write a piece that is not empty."""


class HttpResponse:
    """Writes one response. `started`: its status is on the wire. `ended`: so is its last piece."""

    def __init__(
        self,
        send: Send,
        own_headers: Mapping[str, str],
        clock: Clock,
        stall_s: float = STALL_S,
        writer: Writer | None = None,
    ) -> None:
        """`own_headers` are those that every answer to this request has. `writer`: None where the
        server has none."""
        self._send = send
        self._writer = writer
        self._stall_s = stall_s
        self._own_headers = own_headers
        self._clock = clock
        self._last_write_s = self._clock.now()
        # The time at which a write began that still waits for the client.
        self._waiting_since_s: float | None = None
        # Is given the body of a whole answer that is not an error.
        self.on_whole: Callable[[bytes], None] | None = None
        # Its request goes on when the client leaves.
        self.outlives_client = False
        # The first piece of a stream, which goes out with the next one of this turn of the loop.
        self._opening = b""
        self.started = False
        self.ended = False

    def vendor_limits(
        self, dialect: Dialect, limits: failure_pb2.LimitState | None
    ) -> dict[str, str]:
        """The headers of limits under the names that a vendor's clients know beside ours."""
        if dialect.limit_headers is None:
            return {}
        return dialect.limit_headers(limits, self._clock.unix())

    @property
    def request_id(self) -> str:
        """The id of the request that this answers."""
        return self._own_headers[REQUEST_ID]

    async def start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Send status and headers. At most once."""
        assert not self.started, "a response has one status"
        self.started = True
        fields = {"content-type": content_type, **self._own_headers, **headers}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        await self._write({"type": "http.response.start", "status": status, "headers": raw})

    async def write_opening(self, body: bytes) -> None:
        """Write a piece that another one follows, mostly in this turn of the event loop: one write
        to the socket has both then. A write wakes the client, and costs as much as the pieces."""
        if self.has_room:
            self._opening += body
            asyncio.get_running_loop().call_soon(self._write_opening)
        else:
            await self.write(body)

    def _write_opening(self) -> None:
        if self._opening and self.has_room and not self.ended:
            self.write_now(b"", self._clock.now())

    async def write(self, body: bytes) -> None:
        """Write a piece; returns when the socket's buffer has room again."""
        if self.has_room:
            self.write_now(body, self._clock.now())
        elif body := self._behind_opening(body):
            await self._write({"type": "http.response.body", "body": body, "more_body": True})

    @property
    def has_room(self) -> bool:
        """True when a piece can be written with `write_now`."""
        return self._writer is not None and self.started and self._writer.has_room

    def write_now(self, piece: bytes, now_s: float) -> None:
        """Write a piece at this time. Only with `has_room`."""
        assert self._writer is not None, "there is room"
        self._last_write_s = now_s
        if piece := self._behind_opening(piece):
            self._writer.write(piece)

    def _behind_opening(self, piece: bytes) -> bytes:
        if not self._opening:
            return piece
        opening, self._opening = self._opening, b""
        return opening + piece

    async def end(self, body: bytes = b"") -> None:
        """Send the last piece and end. At most once."""
        assert not self.ended, "a response ends once"
        self.ended = True
        body = self._behind_opening(body)
        await self._write({"type": "http.response.body", "body": body})

    async def end_with(self, pieces: Iterable[bytes]) -> None:
        """Send the last pieces, however large they are together, and end. At most once."""
        last = b""
        for part in _parts(pieces):
            if last:
                await self.write(last)
                # A client that takes it at once would have all of the next turns.
                await asyncio.sleep(0)
            last = part
        await self.end(last)

    async def whole(
        self,
        status: int,
        pieces: Iterable[bytes],
        headers: Mapping[str, str],
        content_type: str = JSON,
    ) -> None:
        """Write a complete response, whose body are these pieces. The length of one that is made as
        it is sent is told only where it is short, or is kept."""
        if not isinstance(pieces, list):
            most_bytes = PART_BYTES if self.on_whole is None else MAX_KEPT_BYTES
            rest = iter(pieces)
            pieces = await gathered(rest, most_bytes)
            if sum(map(len, pieces)) > most_bytes:
                await self.start(status, content_type, headers)
                await self.end_with(chain(pieces, rest))
                return
        num_bytes = sum(map(len, pieces))
        if self.on_whole is not None and status == HTTPStatus.OK and num_bytes <= MAX_KEPT_BYTES:
            self.on_whole(b"".join(pieces))
        await self.start(status, content_type, {**headers, "content-length": str(num_bytes)})
        await self.end_with(pieces)

    async def watch(self, on_silence: Callable[[], Awaitable[None]]) -> None:
        """Call `on_silence` whenever nothing was written for KEEP_ALIVE_S, until cancelled.

        Raises DeadlineExceeded `client_stalled` when the client has stalled.
        """
        while True:
            await asyncio.sleep(self._next_look_s())
            if self._waiting_since_s is not None:
                if self._clock.now() - self._waiting_since_s >= self._stall_s:
                    raise self._stalled()
            elif self._clock.now() - self._last_write_s >= KEEP_ALIVE_S:
                self._last_write_s = self._clock.now()
                try:
                    async with asyncio.timeout(self._stall_s):
                        await on_silence()
                except TimeoutError:
                    raise self._stalled() from None

    def _next_look_s(self) -> float:
        if self._waiting_since_s is not None:
            left_s = self._waiting_since_s + self._stall_s - self._clock.now()
        else:
            left_s = min(self._last_write_s + KEEP_ALIVE_S - self._clock.now(), self._stall_s)
        return max(left_s, _SHORTEST_LOOK_S)

    def _stalled(self) -> DeadlineExceeded:
        message = f"the client took nothing for {self._stall_s:g} s"
        return DeadlineExceeded(message, reason=STALLED)

    async def _write(self, message: dict[str, object]) -> None:
        self._waiting_since_s = self._clock.now()
        await self._send(message)
        self._waiting_since_s = None
        self._last_write_s = self._clock.now()


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, joined to parts that are quickly copied and large enough to be worth a write."""
    part: list[bytes] = []
    num_bytes = 0
    for piece in pieces:
        part.append(piece)
        num_bytes += len(piece)
        if num_bytes >= PART_BYTES:
            yield b"".join(part)
            part, num_bytes = [], 0
    yield b"".join(part)


async def send_error(
    response: HttpResponse,
    error: BatonError,
    known: Mapping[str, str] | None = None,
    dialect: Dialect = OPENAI,
) -> None:
    """Write an error as a whole response. `known` are headers that any answer to the request would
    have."""
    vendor_limits = response.vendor_limits(dialect, error.limits)
    headers = {**(known or {}), **error_headers(error), **vendor_limits}
    if error.reason == "request_timeout":
        # The rest of the body may still come, and is not a next request.
        headers["connection"] = "close"
    body = dialect.error_body(error, response.request_id)
    await response.whole(dialect.status_of(error), [body], headers)


def error_headers(error: BatonError) -> dict[str, str]:
    """The headers of a refusal: retry advice and, for limits, their state."""
    headers = {"x-should-retry": "true" if error.row.retryable else "false"}
    if error.retry_after_s > 0:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return {**headers, **limit_headers(error.limits)}


def limit_headers(limits: failure_pb2.LimitState | None) -> dict[str, str]:
    """The x-ratelimit-* headers; a limit of 0 means unlimited and is left out."""
    headers: dict[str, str] = {}
    if limits is not None and limits.limit_requests:
        headers["x-ratelimit-limit-requests"] = str(limits.limit_requests)
        headers["x-ratelimit-remaining-requests"] = str(limits.remaining_requests)
        headers["x-ratelimit-reset-requests"] = duration(limits.reset_requests_ms)
        if limits.requests_scope:
            headers["x-ratelimit-scope-requests"] = limits.requests_scope
    if limits is not None and limits.limit_tokens:
        headers["x-ratelimit-limit-tokens"] = str(limits.limit_tokens)
        headers["x-ratelimit-remaining-tokens"] = str(limits.remaining_tokens)
        headers["x-ratelimit-reset-tokens"] = duration(limits.reset_tokens_ms)
        if limits.tokens_scope:
            headers["x-ratelimit-scope-tokens"] = limits.tokens_scope
    return headers


def duration(milliseconds: int) -> str:
    """A duration as OpenAI writes it: 12ms, 1s, 1.5s, 6m0s."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def server_timing(stages: Mapping[str, float]) -> str:
    """The Server-Timing header of stage times in seconds."""
    return ", ".join([f"{name};dur={seconds * 1000:.1f}" for name, seconds in stages.items()])
