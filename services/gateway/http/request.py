"""The parts of an HTTP request that the gateway reads: id, trace, timeouts, and a bounded body."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from baton.wire.failures import Cancelled, DeadlineExceeded, InvalidRequest, quoted
from baton.wire.metadata import REQUEST_ID

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
# The key, in a request's scope, of the headers that every answer to it has.
OWN_HEADERS_KEY = "baton.headers"
BODY_TIMEOUT_S = 10.0
# Timeouts in seconds: of the whole request, to its first token, between two tokens.
TOTAL_HEADER = "x-request-timeout-s"
FIRST_TOKEN_HEADER = "x-first-token-timeout-s"
TOKEN_GAP_HEADER = "x-token-gap-timeout-s"
MAX_TIMEOUT_S = 3600.0
# 1 = the answer explains the choice of its workers.
EXPLAIN_HEADER = "x-explain"
CLIENT_ID_HEADER = "x-client-request-id"
IDEMPOTENCY_HEADER = "Idempotency-Key"

# As long as OpenAI takes them.
_CLIENT_ID = re.compile(r"[!-~]{1,512}")
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")
# The media types that tools send where they were not told which.
_UNSAID = {"", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream"}


class Headers:
    """Request headers by lower-case name; repeated ones are kept apart."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in raw:
            self._values.setdefault(name, []).append(value)

    def get(self, name: str) -> str | None:
        """The header's value, None when it is absent or given more than once."""
        values = self.all(name)
        return values[0] if len(values) == 1 else None

    def all(self, name: str) -> list[str]:
        values = self._values.get(name.encode())
        return [value.decode("latin-1") for value in values] if values else []


def authorization_of(headers: Headers) -> str | None:
    """The Authorization header, or a key as Anthropic's clients send it in the same form; two of
    them are as good as a wrong one."""
    if values := headers.all("authorization"):
        return ",".join(values)
    keys = headers.all("x-api-key")
    return f"Bearer {','.join(keys)}" if keys else None


def client_address_of(scope: Scope, num_proxies: int) -> str | None:
    """The address of the client behind `num_proxies` of ours; None when it is not known.

    Each of them adds the address that it was called from to x-forwarded-for. The addresses before
    those are not to be trusted: the client may have written them.
    """
    if num_proxies:
        addresses = ",".join(Headers(scope["headers"]).all("x-forwarded-for")).split(",")
        if len(addresses) >= num_proxies and (address := addresses[-num_proxies].strip()):
            return address
    client = scope.get("client")
    return str(client[0]) if client and client[0] else None


def timeout_of(headers: Headers, name: str) -> float | None:
    """The seconds of one of the timeout headers, MAX_TIMEOUT_S at most; None when it is absent.

    Raises InvalidRequest; DeadlineExceeded for 0.
    """
    values = headers.all(name)
    if not values:
        return None
    try:
        timeout_s = float(",".join(values))
    except ValueError:
        timeout_s = -1.0
    if not timeout_s >= 0:
        raise InvalidRequest(f"{name}: got {quoted(values[0])}; expected seconds", param=name)
    if timeout_s == 0:
        raise DeadlineExceeded(f"{name}: no time at all")
    return min(timeout_s, MAX_TIMEOUT_S)


def idempotency_key_of(headers: Headers) -> str:
    """The key under which a request is known when it is repeated; empty when there is none. Raises
    InvalidRequest."""
    values = headers.all(IDEMPOTENCY_HEADER.lower())
    if not values:
        return ""
    if len(values) > 1 or not _IDEMPOTENCY_KEY.fullmatch(values[0]):
        message = (
            f"{IDEMPOTENCY_HEADER}: got {quoted(values[0])}; expected 1 to 255 visible characters"
        )
        raise InvalidRequest(message, param=IDEMPOTENCY_HEADER)
    return values[0]


def wants_explanation(headers: Headers) -> bool:
    """True when the answer should explain the choice of its workers. Raises InvalidRequest."""
    value = ",".join(headers.all(EXPLAIN_HEADER)) or "0"
    if value not in ("0", "1"):
        message = f"{EXPLAIN_HEADER}: got {quoted(value)}; expected 0 or 1"
        raise InvalidRequest(message, param=EXPLAIN_HEADER)
    return value == "1"


def new_request_id(rng: random.Random) -> str:
    """A request id that no other request has, at any gateway: leases, bills and attempts are known
    by it."""
    return f"req_{rng.getrandbits(128):032x}"


def client_request_id_of(headers: Headers) -> str:
    """The id that the client gave its request, or its whole job; empty when there is none that is
    short and visible ASCII. It names nothing here: it is only repeated, in the answer and in logs.
    """
    value = headers.get(CLIENT_ID_HEADER) or headers.get(REQUEST_ID) or ""
    return value if _CLIENT_ID.fullmatch(value) else ""


def own_headers(headers: Headers, request_id: str) -> dict[str, str]:
    """The headers that every answer to a request has."""
    client_id = client_request_id_of(headers)
    ids = {REQUEST_ID: request_id}
    return {**ids, CLIENT_ID_HEADER: client_id} if client_id else ids


class RequestBody:
    """A request's body, which is not read before its client is authenticated.

    `was_read` is set once `read` has returned or raised; until then only this object may call
    `receive`.
    """

    def __init__(self, headers: Headers, receive: Receive, max_bytes: int) -> None:
        self._headers = headers
        self._receive = receive
        self._max_bytes = max_bytes
        self.was_read = asyncio.Event()

    @property
    def num_told_bytes(self) -> int:
        """The length that the client told, as far as it may be; 0 when it told none."""
        length = self._headers.get("content-length") or "0"
        return min(int(length), self._max_bytes) if length.isdigit() else 0

    async def read(self, need: Callable[[int], None]) -> bytes:
        """Read the whole body. `need` takes room for the bytes that are there, and may raise.

        Raises InvalidRequest (too large, encoded, too slow), Cancelled when the client left.
        """
        try:
            self._check_headers()
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await self._read(need)
        except TimeoutError:
            raise InvalidRequest(
                f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s", reason="request_timeout"
            ) from None
        finally:
            self.was_read.set()

    def _check_headers(self) -> None:
        if (self._headers.get("content-encoding") or "identity") != "identity":
            raise InvalidRequest("send the body without encoding", reason="unsupported_encoding")
        media_type = self._headers.get("content-type") or JSON
        if media_type != JSON and not _may_be_json(media_type):
            raise InvalidRequest(
                f"content-type: got {quoted(media_type)}; expected {JSON}",
                reason="unsupported_media_type",
                param="content-type",
            )
        length = self._headers.get("content-length")
        if length is not None and length.isdigit() and int(length) > self._max_bytes:
            raise _too_large(self._max_bytes)

    async def _read(self, need: Callable[[int], None]) -> bytes:
        parts, num_bytes = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Cancelled("the client left")
            parts.append(message.get("body", b""))
            num_bytes += len(parts[-1])
            if num_bytes > self._max_bytes:
                raise _too_large(self._max_bytes)
            need(num_bytes)
            if not message.get("more_body"):
                return b"".join(parts)


def _may_be_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json") or kind in _UNSAID


def _too_large(max_bytes: int) -> InvalidRequest:
    return InvalidRequest(f"the body is larger than {max_bytes} bytes", reason="body_too_large")
