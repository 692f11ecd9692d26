"""The paths of stored responses: fetch, delete, cancel, input items."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from baton.wire.failures import InvalidRequest, LimitExceeded, quoted
from services.gateway.http.request import JSON, OWN_HEADERS_KEY
from services.gateway.http.response import EVENT_STREAM, STREAM_HEADERS
from services.gateway.stored.reading import StoredResponses
from services.gateway.stored.store import Store
from services.gateway.tenants.principal import Principal

PrincipalOf = Callable[[Request], Awaitable[Principal]]
MAX_LIMIT = 100
# Of one tenant, each of which asks Redis twenty times a second.
MAX_FOLLOWED = 256
_DEFAULT_LIMIT = 20


class ResponsesApi:
    """Serves the paths below /v1/responses/{id}."""

    def __init__(self, store: Store, principal_of: PrincipalOf) -> None:
        self._responses = StoredResponses(store)
        self._principal_of = principal_of
        # Streams that are followed here, by tenant.
        self._num_followed: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        """The paths and their methods."""
        path = "/v1/responses/{id}"
        return [
            Route(path, self._fetch, methods=["GET"]),
            Route(path, self._delete, methods=["DELETE"]),
            Route(f"{path}/cancel", self._cancel, methods=["POST"]),
            Route(f"{path}/input_items", self._input_items, methods=["GET"]),
        ]

    async def _fetch(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        if not flag_of(request, "stream"):
            return json_response(request, await self._responses.fetch(tenant, name))
        after = number_of(request, "starting_after", -1)
        if self._num_followed[tenant] >= MAX_FOLLOWED:
            message = f"{MAX_FOLLOWED} streams of this tenant are followed here already"
            raise LimitExceeded(message, reason="share_exceeded", retry_after_s=1)
        events = self._counted(tenant, await self._responses.events(tenant, name, after))
        headers = {**request.scope[OWN_HEADERS_KEY], **STREAM_HEADERS}
        return StreamingResponse(events, headers=headers, media_type=EVENT_STREAM)

    async def _counted(self, tenant: str, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._num_followed[tenant] += 1
        try:
            async for event in events:
                yield event
        finally:
            self._num_followed[tenant] -= 1
            if not self._num_followed[tenant]:
                del self._num_followed[tenant]

    async def _delete(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        await self._responses.delete(tenant, name)
        return json_response(request, {"id": name, "object": "response", "deleted": True})

    async def _cancel(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        return json_response(request, await self._responses.cancel(tenant, name))

    async def _input_items(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        items = await self._responses.input_items(tenant, name)
        return json_response(request, page_of(request, items))

    async def _named(self, request: Request) -> tuple[str, str]:
        principal = await self._principal_of(request)
        return principal.tenant, request.path_params["id"]


def page_of(request: Request, items: list[dict[str, Any]]) -> dict[str, Any]:
    """The page of a list that a request asks for: the newest first, unless it says otherwise.
    Raises InvalidRequest."""
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order: got {quoted(order)}; expected asc or desc", param="order")
    limit = number_of(request, "limit", _DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit: got {limit}; expected 1 to {MAX_LIMIT}", param="limit")
    ordered = items if order == "asc" else items[::-1]
    begin = _place_behind(ordered, request.query_params.get("after"))
    page = ordered[begin : begin + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + limit < len(ordered),
    }


def _place_behind(items: list[dict[str, Any]], name: str | None) -> int:
    if name is None:
        return 0
    for place, item in enumerate(items):
        if item["id"] == name:
            return place + 1
    raise InvalidRequest(f"after: {quoted(name)} is not in this list", param="after")


def number_of(request: Request, name: str, default: int) -> int:
    """A whole number of the query. Raises InvalidRequest."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(f"{name}: got {quoted(text)}; expected a whole number", param=name)
    return int(text)


def flag_of(request: Request, name: str) -> bool:
    """True or false in the query. Raises InvalidRequest."""
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{name}: got {quoted(text)}; expected true or false", param=name)
    return text in ("true", "1")


def json_response(request: Request, content: bytes | dict[str, Any]) -> Response:
    """An answer as JSON, which may be encoded already."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, headers=request.scope[OWN_HEADERS_KEY], media_type=JSON)
