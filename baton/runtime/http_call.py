"""One small HTTP request to a process of ours, with a time limit: /readyz or Envoy's admin port."""

import asyncio
from dataclasses import dataclass

from baton.runtime.peer_tls import PeerTls

_MAX_ANSWER_BYTES = 256 * 1024


class NoAnswer(Exception):
    """No HTTP answer came in time."""


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A server over mutual TLS: the caller's identity, and the DNS name that the server shows."""

    identity: PeerTls
    name: str


async def call(
    address: tuple[str, int],
    path: str,
    *,
    method: str = "GET",
    timeout_s: float,
    tls: TlsServer | None = None,
) -> tuple[int, bytes]:
    """Make a request; returns status and body. Raises NoAnswer."""
    context = tls.identity.client_context() if tls else None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                *address, ssl=context, server_hostname=tls.name if tls else None
            )
            try:
                writer.write(
                    f"{method} {path} HTTP/1.1\r\nhost: {address[0]}\r\ncontent-length: 0\r\n"
                    "connection: close\r\n\r\n".encode()
                )
                answer = await _read_to_end(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise NoAnswer(f"{address[0]}:{address[1]}{path}: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise NoAnswer(f"{address[0]}:{address[1]}{path}: not HTTP")
    return int(words[1]), body


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    while num_bytes < _MAX_ANSWER_BYTES and (part := await reader.read(64 * 1024)):
        parts.append(part)
        num_bytes += len(part)
    return b"".join(parts)
