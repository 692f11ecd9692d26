"""Conversations: /v1/conversations and the paths below it.

A conversation is a list of items; a response with `conversation` adds its input and its output.
"""

from random import Random
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest
from services.gateway.http.request import Headers, RequestBody
from services.gateway.http.stored_responses import PrincipalOf, json_response, page_of
from services.gateway.openai import limits
from services.gateway.openai.decoding import decode_object, to_struct
from services.gateway.openai.responses import prompt_of
from services.gateway.stored.items import named_items
from services.gateway.stored.reading import not_found
from services.gateway.stored.store import GONE, Store, too_large

MAX_ITEMS = 20
# It is parsed in the event loop. Longer items come in with responses.
MAX_BODY_BYTES = 64 * 1024
_PATH = "/v1/conversations"


class NewConversation(msgspec.Struct):
    """The fields of a request for a conversation."""

    items: list[dict[str, Any]] | None = None
    metadata: limits.Metadata | None = None


class Changes(msgspec.Struct):
    """The fields of a change of a conversation."""

    metadata: limits.Metadata | None


class NewItems(msgspec.Struct):
    """The fields of a request that adds items."""

    items: list[dict[str, Any]]


class ConversationsApi:
    """Serves conversations."""

    def __init__(
        self,
        store: Store,
        principal_of: PrincipalOf,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._store = store
        self._principal_of = principal_of
        self._clock = clock
        self._rng = rng

    def routes(self) -> list[Route]:
        """The paths and their methods."""
        one, items = f"{_PATH}/{{id}}", f"{_PATH}/{{id}}/items"
        return [
            Route(_PATH, self._create, methods=["POST"]),
            Route(one, self._fetch, methods=["GET"]),
            Route(one, self._change, methods=["POST"]),
            Route(one, self._delete, methods=["DELETE"]),
            Route(items, self._list_items, methods=["GET"]),
            Route(items, self._add_items, methods=["POST"]),
            Route(f"{items}/{{item_id}}", self._fetch_item, methods=["GET"]),
            Route(f"{items}/{{item_id}}", self._delete_item, methods=["DELETE"]),
        ]

    async def _create(self, request: Request) -> Response:
        tenant = (await self._principal_of(request)).tenant
        if not self._store.keeps(tenant):
            raise InvalidRequest("this server keeps nothing of this tenant", reason="not_found")
        fields = to_struct(await self._body(request), NewConversation, {})
        items = self._checked(fields.items or [])
        name = f"conv_{self._rng.getrandbits(128):032x}"
        conversation = {
            "id": name,
            "object": "conversation",
            "created_at": int(self._clock.unix()),
            "metadata": fields.metadata or {},
        }
        stored = msgspec.json.encode(conversation)
        await self._store.write(tenant, name, {"conversation": stored})
        if items:
            await self._append(tenant, name, items)
        return json_response(request, stored)

    async def _fetch(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        return json_response(request, await self._read(tenant, name))

    async def _change(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        fields = to_struct(await self._body(request), Changes, {})
        conversation = msgspec.json.decode(await self._read(tenant, name))
        stored = msgspec.json.encode({**conversation, "metadata": fields.metadata or {}})
        await self._store.write(tenant, name, {"conversation": stored})
        return json_response(request, stored)

    async def _delete(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        await self._read(tenant, name)
        await self._store.delete(tenant, name)
        deleted = {"id": name, "object": "conversation.deleted", "deleted": True}
        return json_response(request, deleted)

    async def _list_items(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        await self._read(tenant, name)
        items = [msgspec.json.decode(item) for item in await self._store.items(tenant, name)]
        return json_response(request, page_of(request, items))

    async def _add_items(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        fields = to_struct(await self._body(request), NewItems, {})
        await self._read(tenant, name)
        items = self._checked(fields.items)
        await self._append(tenant, name, items)
        added = {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": False,
        }
        return json_response(request, added)

    async def _fetch_item(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        return json_response(request, await self._item(tenant, name, request))

    async def _delete_item(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        item = await self._item(tenant, name, request)
        await self._store.remove_item(tenant, name, item)
        return json_response(request, await self._read(tenant, name))

    async def _item(self, tenant: str, name: str, request: Request) -> bytes:
        wanted = request.path_params["item_id"]
        for item in await self._store.items(tenant, name):
            if msgspec.json.decode(item)["id"] == wanted:
                return item
        raise not_found("item", wanted)

    async def _read(self, tenant: str, name: str) -> bytes:
        (conversation,) = await self._store.read(tenant, name, "conversation")
        if conversation is None:
            raise not_found("conversation", name)
        return conversation

    async def _append(self, tenant: str, name: str, items: list[dict[str, Any]]) -> None:
        encoded = [msgspec.json.encode(item) for item in items]
        refused = await self._store.append_items(tenant, name, encoded)
        if refused:
            raise not_found("conversation", name) if refused == GONE else too_large("items")

    def _checked(self, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Items as they are stored. Raises InvalidRequest for those that no response would take."""
        if len(given) > MAX_ITEMS:
            message = f"items: got {len(given)}; expected at most {MAX_ITEMS}"
            raise InvalidRequest(message, param="items")
        if given:
            prompt_of(given, "", None)
        name = f"{self._rng.getrandbits(128):032x}"
        return named_items(msgspec.json.encode(given), name)

    async def _named(self, request: Request) -> tuple[str, str]:
        return (await self._principal_of(request)).tenant, request.path_params["id"]

    async def _body(self, request: Request) -> dict[str, Any]:
        body = RequestBody(Headers(request.scope["headers"]), request.receive, MAX_BODY_BYTES)
        return decode_object(await body.read(_need_nothing) or b"{}")


def _need_nothing(num_bytes: int) -> None:
    """Take no room: these bodies are small."""
