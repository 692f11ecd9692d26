"""Batches: /v1/batches and the paths below it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
from opentelemetry.trace import SpanKind
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.runtime.telemetry import start_span
from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest, quoted
from services.gateway.batches.lines import BATCH_ENDPOINTS
from services.gateway.batches.objects import WINDOW_S, batch_object
from services.gateway.batches.request import owner_json
from services.gateway.batches.run import OPEN
from services.gateway.batches.store import BatchKey, BatchStore
from services.gateway.http.request import Headers, RequestBody
from services.gateway.http.stored_responses import PrincipalOf, json_response, page_of
from services.gateway.http.trace_border import TraceBorder
from services.gateway.openai import limits
from services.gateway.openai.decoding import decode_object, to_struct
from services.gateway.tenants.auth import LastingKey

# The authorization of a request, in a form that may be kept.
OwnerOf = Callable[[Request], Awaitable[LastingKey]]
MAX_BODY_BYTES = 64 * 1024
_PATH = "/v1/batches"
WINDOW = "24h"


class NewBatch(msgspec.Struct):
    """The fields of a request for a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: limits.Metadata | None = None


class BatchesApi:
    """Serves batches."""

    def __init__(
        self,
        store: BatchStore,
        principal_of: PrincipalOf,
        owner_of: OwnerOf,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._store = store
        self._principal_of = principal_of
        self._owner_of = owner_of
        self._clock = clock
        self._rng = rng

    def routes(self) -> list[Route]:
        """The paths and their methods."""
        one = f"{_PATH}/{{id}}"
        return [
            Route(_PATH, self._create, methods=["POST"]),
            Route(_PATH, self._list, methods=["GET"]),
            Route(one, self._fetch, methods=["GET"]),
            Route(f"{one}/cancel", self._cancel, methods=["POST"]),
        ]

    async def _create(self, request: Request) -> Response:
        tenant = (await self._principal_of(request)).tenant
        await self._store.check(tenant)
        body = RequestBody(Headers(request.scope["headers"]), request.receive, MAX_BODY_BYTES)
        fields = to_struct(decode_object(await body.read(lambda num_bytes: None)), NewBatch, {})
        _check(fields)
        num_bytes = await self._num_input_bytes(tenant, fields.input_file_id)
        now = int(self._clock.unix())
        key = BatchKey(tenant, f"batch_{self._rng.getrandbits(128):032x}")
        record = {
            "id": key.batch_id,
            "endpoint": fields.endpoint,
            "input_file_id": fields.input_file_id,
            "input_bytes": str(num_bytes),
            "status": "validating",
            "created_at": str(now),
            "expires_at": str(now + WINDOW_S),
            "metadata": msgspec.json.encode(fields.metadata or None).decode(),
            "owner": owner_json(await self._owner_of(request)),
            "traceparent": _traced(key.batch_id, Headers(request.scope["headers"])),
        }
        await self._store.add_batch(key, record)
        return json_response(request, batch_object(record))

    async def _num_input_bytes(self, tenant: str, file_id: str) -> int:
        """The length of an input file. Raises InvalidRequest."""
        file: dict[str, Any] = msgspec.json.decode(await self._store.file(tenant, file_id))
        if file["purpose"] != "batch":
            message = f"input_file_id: the purpose of {quoted(file_id)} is not batch"
            raise InvalidRequest(message, param="input_file_id")
        return int(file["bytes"])

    async def _list(self, request: Request) -> Response:
        tenant = (await self._principal_of(request)).tenant
        names: list[dict[str, Any]] = [{"id": name} for name in await self._store.batch_ids(tenant)]
        page = page_of(request, names)
        shown = []
        for each in page["data"]:
            # One that is too old is gone.
            with suppress(InvalidRequest):
                shown.append(await self._shown(BatchKey(tenant, each["id"])))
        return json_response(request, page | {"data": shown})

    async def _fetch(self, request: Request) -> Response:
        return json_response(request, await self._shown(await self._named(request)))

    async def _cancel(self, request: Request) -> Response:
        """Cancel a batch; one that has ended, or is about to, stays as it is."""
        key = await self._named(request)
        now = str(int(self._clock.unix()))
        changes = {"status": "cancelling", "cancelling_at": now}
        await self._store.batch(key)
        await self._store.step(key, OPEN, changes)
        return json_response(request, await self._shown(key))

    async def _shown(self, key: BatchKey) -> dict[str, Any]:
        return batch_object(await self._store.batch(key))

    async def _named(self, request: Request) -> BatchKey:
        principal = await self._principal_of(request)
        return BatchKey(principal.tenant, request.path_params["id"])


def _traced(batch_id: str, headers: Headers) -> str:
    """The trace context of a span that says that the batch was asked for: its lines link to it."""
    with start_span("create batch", request_id=batch_id, kind=SpanKind.PRODUCER) as span:
        for traceparent, relation in TraceBorder().links(headers):
            span.link(traceparent, relation)
        return span.traceparent


def _check(fields: NewBatch) -> None:
    if fields.endpoint not in BATCH_ENDPOINTS:
        allowed = ", ".join(BATCH_ENDPOINTS)
        message = f"endpoint: got {quoted(fields.endpoint)}; expected one of {allowed}"
        raise InvalidRequest(message, param="endpoint")
    if fields.completion_window != WINDOW:
        message = f"completion_window: got {quoted(fields.completion_window)}; expected {WINDOW}"
        raise InvalidRequest(message, param="completion_window")
