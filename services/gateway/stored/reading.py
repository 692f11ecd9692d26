"""Responses of the store as clients ask for them: fetched, cancelled, deleted, followed.

A response in the background whose gateway has died is ended here, as failed, by the first request
that finds it so.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest, Unavailable, quoted
from services.gateway.openai import sse
from services.gateway.stored.store import GONE, EventBatch, Store

OPEN = ("queued", "in_progress")
# Between two looks for new events.
LOOK_S = 0.1
_KEEP_ALIVE_LOOKS = 100
# A store that does not answer is asked so often, so far apart.
_MAX_SILENT, _RETRY_S = 10, 1.0


class StoredResponses:
    """The stored responses of all tenants."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def fetch(self, tenant: str, response_id: str) -> bytes:
        """A response as JSON. Raises InvalidRequest when it is not there, Unavailable."""
        response, status = await self._read(tenant, response_id)
        if status not in OPEN or await self._store.status_if_alive(tenant, response_id):
            return response
        lost = ended(response, "failed", _LOST)
        if await self._store.write(tenant, response_id, lost, "dead"):
            return response
        return lost["response"]

    async def cancel(self, tenant: str, response_id: str) -> bytes:
        """End a response that runs in the background; one that has ended stays as it is. Raises
        InvalidRequest, Unavailable."""
        response, _ = await self._read(tenant, response_id)
        if not msgspec.json.decode(response)["background"]:
            message = "only a response with background true can be cancelled"
            raise InvalidRequest(message, param="response_id")
        cancelled = ended(response, "cancelled", None)
        if await self._store.write(tenant, response_id, cancelled, "open"):
            return (await self._read(tenant, response_id))[0]
        return cancelled["response"]

    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete a response, which stops it if it runs. Raises InvalidRequest, Unavailable."""
        await self._read(tenant, response_id)
        await self._store.delete(tenant, response_id)

    async def input_items(self, tenant: str, response_id: str) -> list[dict[str, Any]]:
        """All items before a response's output. Raises InvalidRequest, Unavailable."""
        (items,) = await self._store.read(tenant, response_id, "input")
        if items is None:
            raise not_found("response", response_id)
        found: list[dict[str, Any]] = msgspec.json.decode(items)
        return found

    async def events(self, tenant: str, response_id: str, after: int) -> AsyncIterator[bytes]:
        """The events behind this number, those that are there and those that come, as text. Raises
        InvalidRequest, at once, when the response has none."""
        await self._read(tenant, response_id)
        (has_events,) = await self._store.read(tenant, response_id, "has_events")
        if has_events is None:
            message = "stream: only of a response that was made with background and stream true"
            raise InvalidRequest(message, param="stream")
        return self.follow(tenant, response_id, after)

    async def follow(self, tenant: str, response_id: str, after: int) -> AsyncIterator[bytes]:
        """The events behind this number, until the last one. Ends early when the response is
        deleted, or the store stays away."""
        num_looks, num_silent = 0, 0
        while num_silent < _MAX_SILENT:
            try:
                # The status first: what it says of events holds for those that are read after it.
                status = await self._store.status_if_alive(tenant, response_id)
                if not status:
                    await self.fetch(tenant, response_id)
                batches = await self._store.events_after(tenant, response_id, after)
            except InvalidRequest:
                return
            except Unavailable:
                num_silent += 1
                await asyncio.sleep(_RETRY_S)
                continue
            if status == GONE:
                return
            for batch in batches:
                yield events_behind(batch, after)
                after = batch.last_number
            num_silent = 0
            if batches:
                continue
            if status not in OPEN:
                return
            await asyncio.sleep(LOOK_S)
            num_looks += 1
            if num_looks % _KEEP_ALIVE_LOOKS == 0:
                yield sse.KEEP_ALIVE

    async def _read(self, tenant: str, response_id: str) -> tuple[bytes, str]:
        response, status = await self._store.read(tenant, response_id, "response", "status")
        if response is None or status is None:
            raise not_found("response", response_id)
        return response, status.decode()


_LOST = {
    "code": "server_error",
    "message": "worker_lost: the gateway that computed this response has died",
}


class _Status(msgspec.Struct):
    status: str


def status_of(response: bytes) -> str:
    """The status in a response."""
    return msgspec.json.decode(response, type=_Status).status


def ended(response: bytes, status: str, error: dict[str, str] | None) -> dict[str, bytes]:
    """The fields of a response that is ended from outside."""
    changed = {**msgspec.json.decode(response), "status": status, "error": error}
    return {"status": status.encode(), "response": msgspec.json.encode(changed)}


def events_behind(batch: EventBatch, number: int) -> bytes:
    """The events of a batch behind this number."""
    events = batch.text.split(b"\n\n")[:-1]
    first = batch.last_number - len(events) + 1
    return b"".join(event + b"\n\n" for event in events[max(number + 1 - first, 0) :])


def not_found(kind: str, name: str) -> InvalidRequest:
    """The refusal of a name that is not stored, or not any more."""
    return InvalidRequest(f"{kind} {quoted(name)} is not stored here", reason="not_found")
