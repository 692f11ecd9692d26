"""How the page's server answers: JSON, errors in one form, bodies that are bounded."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MAX_BODY_BYTES = 2 * 2**20

Endpoint = Callable[[Request], Awaitable[Response]]
# By path below /api/, and by method.
Endpoints = dict[str, dict[str, Endpoint]]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Away(Exception):
    """Nobody is there who could be asked; the message says who."""


def routes_of(endpoints: Endpoints) -> list[Route]:
    """Routes whose failures are answers."""
    return [
        Route(f"/api/{path}", _answered(endpoint), methods=[method])
        for path, methods in endpoints.items()
        for method, endpoint in methods.items()
    ]


def _answered(endpoint: Endpoint) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refused as refused:
            return error(refused.status, str(refused))
        except (Away, httpx.HTTPError) as away:
            return error(503, str(away) or type(away).__name__)

    return answer


def number(request: Request, name: str) -> float:
    """A number of the query; 0 when it is not there. Raises Refused."""
    text = request.query_params.get(name, "")
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        raise Refused(400, f"{name}={text[:40]!r}: must be a number") from None


async def raw_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. Raises Refused."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > max_bytes:
            raise Refused(413, f"larger than {max_bytes} bytes")
    return data


async def body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body, a JSON object. Raises Refused."""
    try:
        return msgspec.json.decode(await raw_body(request, max_bytes), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as malformed:
        raise Refused(400, str(malformed)) from None


def json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def error(status: int, message: str) -> Response:
    content = msgspec.json.encode({"error": {"message": message}})
    return Response(content, status, media_type="application/json")
