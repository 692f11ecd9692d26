"""Bytes as hostile clients send them, and a connection of the gateway's own server in memory."""

import asyncio
import socket
from random import Random
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from services.gateway.http.protocol import BoundedHttpProtocol
from tests.unit.gateway.fakes import KEY

CHAT = b'{"model":"demo","messages":[{"role":"user","content":"hi"}]}'
_METHODS = (
    b"POST",
    b"GET",
    b"DELETE",
    b"OPTIONS",
    b"HEAD",
    b"CONNECT",
    b"PRI",
    b"get",
    b"",
    b"M-S",
)
_TARGETS = (
    b"/v1/chat/completions", b"/v1/models", b"/v1/models/demo", b"/v1/models/%ff%00", b"/",
    b"/v1/requests/chatcmpl-req_1", b"/v1/responses/resp_1?stream=true&starting_after=-1",
    b"/v1/responses/resp_1/input_items?limit=%b2&order=asc&after=%ff", b"/readyz", b"*", b"",
    b"http://h/v1/models", b"http://h", b"h:443", b"/%2f/../v1/models", b"/\xff\xfe", b"//", b"/?%",
    b"/v1/responses/index", b"/v1/conversations/bytes/items/%0a", b"/" + b"a" * 9000, b"/#\x7f",
)  # fmt: skip
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"")
_NAMES = (
    b"content-type", b"content-encoding", b"x-request-id", b"x-client-request-id", b"traceparent",
    b"x-request-timeout-s", b"x-first-token-timeout-s", b"x-token-gap-timeout-s", b"x-explain",
    b"idempotency-key", b"x-forwarded-for", b"authorization", b"host", b"expect", b"connection",
    b"upgrade", b"content-length", b"transfer-encoding", b"origin", b"", b"a b", b"\xff", b"x:",
)  # fmt: skip
_VALUES = (
    b"", b"1", b"0", b"-1", b"\xb2", b"1e999", b"nan", b"1_0", b"9" * 30, b"application/json",
    b"text/xml", b"gzip", b"identity", b"100-continue", b"close", b"keep-alive", b"websocket",
    b"Upgrade, HTTP2-Settings", b"h2c", b"chunked", b"gzip, chunked", b"\xff\xfe", b"a\x00b",
    b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"x" * 600, b"Bearer \xff", b"Bearer", b"a\tb",
)  # fmt: skip
_BODIES = (CHAT, b"", b"{}", b"\x00" * 9, CHAT[:20], CHAT * 2)


def _request(random: Random) -> bytes:
    """One request that is nearly right."""
    body = random.choice(_BODIES)
    method, target, version = (
        random.choice(parts) if random.randint(0, 1) else parts[0]
        for parts in (_METHODS, _TARGETS, _VERSIONS)
    )
    lines = [b"host: h", b"authorization: Bearer " + KEY.encode()]
    framing = random.choice(("told", "told", "told", "chunked", "wrong", "none", "both"))
    if framing in ("told", "both"):
        lines.append(b"content-length: %d" % len(body))
    if framing == "wrong":
        lines.append(b"content-length: %d" % random.randint(0, 99))
    if framing in ("chunked", "both"):
        lines.append(b"transfer-encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lines += [_line(random) for _ in range(random.randint(0, 4))]
    return b"\r\n".join((b" ".join((method, target, version)), *lines, b"", body))


def _line(random: Random) -> bytes:
    """A line of a head."""
    is_known = random.randint(0, 1)
    value = random.choice(_VALUES) if is_known else random.randbytes(random.randint(0, 9))
    return random.choice(_NAMES) + b": " + value


def packets(random: Random) -> list[bytes]:
    """What comes over one connection: requests, some of them spoilt, in pieces."""
    sent = b"".join(_request(random) for _ in range(random.randint(1, 3)))
    for _ in range(random.choice((0, 0, 1, 3))):
        place = random.randint(0, len(sent))
        kept = random.choice((place, place + 1, place + 4, len(sent)))
        sent = sent[:place] + random.randbytes(random.randint(0, 5)) + sent[kept:]
    cuts = sorted(random.randint(0, len(sent)) for _ in range(random.randint(0, 3)))
    return [sent[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]


class Transport(asyncio.Transport):
    """A client's end that reads at once, and keeps what it read."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__({"socket": own})
        self.written = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bound nothing: all is read at once."""

    def pause_reading(self) -> None:
        """Go on: what is sent is there already."""

    def resume_reading(self) -> None:
        """Go on."""


async def exchange(app: Any, sent: list[bytes], seconds: float) -> bytes:
    """Send these packets over a connection of its own, wait, leave; return what was answered."""
    config = uvicorn.Config(app, loop="none", ws="none", lifespan="off", log_config=None)
    config.load()
    own, far = socket.socketpair()
    with own, far:
        transport = Transport(own)
        protocol = BoundedHttpProtocol(config, ServerState(), {}, stall_s=30.0)
        protocol.connection_made(cast(asyncio.Transport, transport))
        for packet in sent:
            if packet and not transport.is_closing():
                protocol.data_received(packet)
            await asyncio.sleep(0)
        await asyncio.sleep(seconds)
        protocol.connection_lost(None)
        await asyncio.sleep(0.01)
    return transport.written
