"""The endpoints: keys, tenants, organisations, their limits and what is spent of budgets, as JSON
over HTTP on a port of its own, for callers with its token.

A change goes into the durable home first (`baton.keys`), safely beside other writers, and then into
Redis, so that it counts at once. If Redis is away it counts when Redis is back: `in_effect` says
so. Knows no way to read a key: it is shown once, when it is made.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.keys import changes
from baton.keys.changes import KeyChange, NewKey, UnknownKey
from baton.keys.homes import RegistryHome
from baton.keys.secrets import HomeAway
from baton.runtime import logs
from baton.wire import key_registry
from baton.wire.failures import Unavailable
from baton.wire.key_limits import NAME_RULES, KeyLimits, OwnerLimits, organisation_of
from baton.wire.key_registry import KeyRecord, Record, RegistryError
from baton.wire.plain_errors import plain
from services.quota.admin.budget_windows import budget_windows
from services.quota.registry import Registry
from services.quota.store import Store

MAX_BODY_BYTES = 64 * 1024
MIN_TOKEN_CHARS = 20
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
_log = logs.get("quota.admin_api")


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AdminApi:
    """The endpoints. The token and the server secret are read for each request that needs them."""

    def __init__(
        self, home: RegistryHome, registry: Registry, store: Store, token: Path, secret: Path
    ) -> None:
        self._home = home
        self._registry = registry
        self._store = store
        self._token = token
        self._secret = secret

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = {
            "keys": {"GET": self._list_keys, "POST": self._create_key},
            "keys/{key_id}": {
                "GET": self._show_key, "PATCH": self._update_key, "DELETE": self._revoke_key,
            },
            "tenants": {"GET": self._list_tenants},
            "organisations": {"GET": self._list_organisations},
            "{level}s/{name:path}/limits": {"GET": self._show_limits, "PUT": self._set_limits},
            "usage": {"GET": self._usage},
        }  # fmt: skip
        return Starlette(
            routes=[
                Route(f"/admin/v1/{path}", self._guarded(endpoint), methods=[method])
                for path, methods in routes.items()
                for method, endpoint in methods.items()
            ]
        )

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint for callers with the token, whose failures are answers."""

        async def answer(request: Request) -> Response:
            try:
                self._check_token(request)
                return await endpoint(request)
            except _Refused as error:
                return _error(error.status, str(error))
            except UnknownKey as error:
                return _error(404, str(error))
            except HomeAway as error:
                return _error(503, str(error))
            except RegistryError as error:
                return _error(409, str(error))
            except Unavailable as error:
                return _error(503, error.message)

        return answer

    def _check_token(self, request: Request) -> None:
        try:
            token = self._token.read_text().strip()
        except OSError as error:
            _log.error("token_unreadable", error=str(error))
            token = ""
        if len(token) < MIN_TOKEN_CHARS:
            raise _Refused(503, "the admin API has no usable token")
        shown = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(shown, f"Bearer {token}".encode()):
            _log.warning("refused", client=request.client.host if request.client else "")
            raise _Refused(401, "send the admin token as 'Authorization: Bearer <token>'")

    async def _list_keys(self, request: Request) -> Response:
        tenant = request.query_params.get("tenant", "")
        entries = await asyncio.to_thread(self._home.read)
        keys = [key for key in entries.keys.values() if tenant in ("", key.tenant)]
        return _json({"keys": [_shown(key) for key in keys]})

    async def _show_key(self, request: Request) -> Response:
        entries = await asyncio.to_thread(self._home.read)
        key_id = request.path_params["key_id"]
        if (record := entries.keys.get(key_id)) is None:
            raise UnknownKey(f"key id {key_id!r} is not in the registry")
        return _json(_shown(record))

    async def _create_key(self, request: Request) -> Response:
        new = await _body(request, NewKey)
        secret = await asyncio.to_thread(key_registry.read_secret, self._secret)
        api_key, record = await asyncio.to_thread(changes.create, self._home, secret, new)
        return await self._changed(record, 201, key=api_key)

    async def _update_key(self, request: Request) -> Response:
        change = await _body(request, KeyChange)
        key_id = request.path_params["key_id"]
        record = await asyncio.to_thread(changes.update, self._home, key_id, change.applied_to)
        return await self._changed(record)

    async def _revoke_key(self, request: Request) -> Response:
        key_id = request.path_params["key_id"]
        return await self._changed(await asyncio.to_thread(changes.revoke, self._home, key_id))

    async def _list_tenants(self, request: Request) -> Response:
        entries = await asyncio.to_thread(self._home.read)
        names = {key.tenant for key in entries.keys.values()}
        names |= {owner.name for owner in entries.limits.values() if owner.level == "tenant"}
        return _json({"tenants": sorted(names)})

    async def _list_organisations(self, request: Request) -> Response:
        entries = await asyncio.to_thread(self._home.read)
        names = {organisation_of(key.tenant) for key in entries.keys.values()} - {""}
        names |= {owner.name for owner in entries.limits.values() if owner.level != "tenant"}
        return _json({"organisations": sorted(names)})

    async def _show_limits(self, request: Request) -> Response:
        empty = _owner(request, KeyLimits())
        entries = await asyncio.to_thread(self._home.read)
        return _json(_shown(entries.limits.get(empty.owner, empty)))

    async def _set_limits(self, request: Request) -> Response:
        owner = _owner(request, await _body(request, KeyLimits))
        written = await asyncio.to_thread(
            changes.set_limits, self._home, owner.level, owner.name, lambda before: owner.limits
        )
        return await self._changed(written)

    async def _usage(self, request: Request) -> Response:
        if not (tenant := request.query_params.get("tenant", "")):
            raise _Refused(400, "say whose: ?tenant=NAME")
        unix_ms = _day_ms(request.query_params.get("day", ""))
        entries = await asyncio.to_thread(self._home.read)
        windows = await budget_windows(self._store, entries, tenant, unix_ms)
        return _json({"windows": windows})

    async def _changed(self, record: Record, status: int = 200, **more: str) -> Response:
        """Tell Redis, then the client."""
        try:
            await self._registry.declare(record)
        except Unavailable:
            in_effect = False
        else:
            in_effect = True
        name = record.key_id if isinstance(record, KeyRecord) else record.owner
        _log.info("changed", about=name, in_effect=in_effect)
        return _json({**more, **_shown(record), "in_effect": in_effect}, status)


def _shown(record: Record) -> dict[str, Any]:
    """A record without what nobody needs to see."""
    shown: dict[str, Any] = msgspec.to_builtins(record)
    for hidden in ("op", "digest"):
        shown.pop(hidden, None)
    return shown


def _owner(request: Request, limits: KeyLimits) -> OwnerLimits:
    """The tenant or organisation of a path, with these limits."""
    try:
        return key_registry.owner_limits(
            request.path_params["level"], request.path_params["name"], limits
        )
    except RegistryError as error:
        raise _Refused(400, str(error)) from None


def _day_ms(text: str) -> int:
    """A day, 2026-11-23, as a time in it; empty = now."""
    try:
        day = datetime.fromisoformat(text).replace(tzinfo=UTC) if text else datetime.now(UTC)
    except ValueError:
        raise _Refused(400, f"day={text[:40]!r}: write 2026-11-23") from None
    return int(day.timestamp() * 1000)


async def _body(request: Request, kind: type[T]) -> T:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise _Refused(413, f"larger than {MAX_BODY_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Refused(400, plain(str(error), NAME_RULES)) from None


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return _json({"error": {"message": message}}, status)
