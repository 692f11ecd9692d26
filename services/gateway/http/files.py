"""Files of clients: /v1/files and the paths below it: the inputs of batches, and their outputs.

An upload goes to the store as it comes; it is a file once all of it is there.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from baton.system.clock import Clock
from baton.wire.failures import Cancelled, InvalidRequest, LimitExceeded, Unavailable, quoted
from services.gateway.batches.objects import file_json
from services.gateway.batches.store import BatchStore
from services.gateway.http.multipart import boundary_of, parts_of
from services.gateway.http.request import OWN_HEADERS_KEY, Headers
from services.gateway.http.stored_responses import PrincipalOf, json_response, page_of

UPLOAD_S = 300.0
# Of one tenant at one gateway.
MAX_UPLOADS = 8
PIECE_BYTES = 128 * 1024
_MAX_FIELD_BYTES = 1024
_MAX_NAME_CHARS = 255
JSON_LINES = "application/jsonl"
_PATH = "/v1/files"


@dataclass(slots=True)
class _Upload:
    """A file that is on its way. `fields`: the form's other fields."""

    tenant: str
    file_id: str
    filename: str = ""
    has_file: bool = False
    fields: dict[str, bytes] = field(default_factory=dict)
    num_bytes: int = 0


class FilesApi:
    """Serves files."""

    def __init__(
        self, store: BatchStore, principal_of: PrincipalOf, clock: Clock, rng: Random
    ) -> None:
        self._store = store
        self._principal_of = principal_of
        self._clock = clock
        self._rng = rng
        # By tenant.
        self._num_uploads: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        """The paths and their methods."""
        one = f"{_PATH}/{{id}}"
        return [
            Route(_PATH, self._create, methods=["POST"]),
            Route(_PATH, self._list, methods=["GET"]),
            Route(one, self._fetch, methods=["GET"]),
            Route(one, self._delete, methods=["DELETE"]),
            Route(f"{one}/content", self._content, methods=["GET"]),
        ]

    async def _create(self, request: Request) -> Response:
        tenant = (await self._principal_of(request)).tenant
        await self._store.check(tenant)
        if self._num_uploads[tenant] >= MAX_UPLOADS:
            message = f"{MAX_UPLOADS} files of this tenant are on their way here already"
            raise LimitExceeded(message, reason="share_exceeded", retry_after_s=1)
        upload = _Upload(tenant, f"file-{self._rng.getrandbits(128):032x}")
        self._num_uploads[tenant] += 1
        try:
            return json_response(request, await self._take(request, upload))
        except BaseException:
            with suppress(Unavailable):
                await self._store.drop_content(tenant, upload.file_id)
            raise
        finally:
            self._num_uploads[tenant] -= 1
            if not self._num_uploads[tenant]:
                del self._num_uploads[tenant]

    async def _take(self, request: Request, upload: _Upload) -> bytes:
        try:
            async with asyncio.timeout(UPLOAD_S):
                await self._read(request, upload)
        except TimeoutError:
            message = f"the file did not arrive within {UPLOAD_S:.0f} s"
            raise InvalidRequest(message, reason="request_timeout") from None
        except ClientDisconnect:
            raise Cancelled("the client left") from None
        _check(upload)
        now = int(self._clock.unix())
        times = (now, now + int(self._store.ttl_s))
        shown = file_json(upload.file_id, upload.filename, "batch", upload.num_bytes, times)
        await self._store.add_file(upload.tenant, upload.file_id, shown, upload.num_bytes)
        return shown

    async def _read(self, request: Request, upload: _Upload) -> None:
        content_type = Headers(request.scope["headers"]).get("content-type") or ""
        waiting = bytearray()
        async with aclosing(parts_of(request.stream(), boundary_of(content_type))) as parts:
            async for part, piece in parts:
                if part.name == "file" and part.filename is not None:
                    upload.has_file = True
                    upload.filename = part.filename[:_MAX_NAME_CHARS]
                    waiting += piece
                    if len(waiting) >= PIECE_BYTES:
                        await self._write(upload, waiting)
                else:
                    _add_field(upload, part.name, piece)
        await self._write(upload, waiting)

    async def _write(self, upload: _Upload, waiting: bytearray) -> None:
        """Move the bytes that wait into the store."""
        if not waiting:
            return
        piece = bytes(waiting)
        waiting.clear()
        begins = not upload.num_bytes
        upload.num_bytes += len(piece)
        limit = self._store.limits.max_file_bytes
        if upload.num_bytes > limit:
            message = f"the file is larger than {limit} bytes"
            raise InvalidRequest(message, reason="body_too_large", param="file")
        if begins:
            await self._store.begin_content(upload.tenant, upload.file_id, piece)
        else:
            await self._store.add_content(upload.tenant, upload.file_id, piece)

    async def _list(self, request: Request) -> Response:
        tenant = (await self._principal_of(request)).tenant
        purpose = request.query_params.get("purpose")
        files: list[dict[str, Any]] = [
            msgspec.json.decode(file) for file in await self._store.files(tenant)
        ]
        files = [file for file in files if purpose in (None, file["purpose"])]
        files.sort(key=lambda file: (file["created_at"], file["id"]))
        return json_response(request, page_of(request, files))

    async def _fetch(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        return json_response(request, await self._store.file(tenant, name))

    async def _delete(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        await self._store.delete_file(tenant, name)
        return json_response(request, {"id": name, "object": "file", "deleted": True})

    async def _content(self, request: Request) -> Response:
        tenant, name = await self._named(request)
        file = msgspec.json.decode(await self._store.file(tenant, name))
        headers = request.scope[OWN_HEADERS_KEY]
        pieces = self._pieces(tenant, name, file["bytes"])
        return StreamingResponse(pieces, headers=headers, media_type=JSON_LINES)

    async def _pieces(self, tenant: str, name: str, num_bytes: int) -> AsyncIterator[bytes]:
        for begin in range(0, num_bytes, PIECE_BYTES):
            piece = await self._store.content(tenant, name, begin, PIECE_BYTES)
            if not piece:
                # An answer that ends here would look like the whole file.
                raise Unavailable("the file was deleted meanwhile")
            yield piece

    async def _named(self, request: Request) -> tuple[str, str]:
        principal = await self._principal_of(request)
        return principal.tenant, request.path_params["id"]


def _add_field(upload: _Upload, name: str, piece: bytes) -> None:
    value = upload.fields.get(name, b"") + piece
    if len(value) > _MAX_FIELD_BYTES:
        raise InvalidRequest(f"{quoted(name)}: too long", param=name[:_MAX_NAME_CHARS])
    upload.fields[name] = value


def _check(upload: _Upload) -> None:
    """Raise InvalidRequest unless the form is one of a file for a batch."""
    fields = dict(upload.fields)
    purpose = fields.pop("purpose", b"").decode("utf-8", "replace")
    if purpose != "batch":
        message = f"purpose: got {quoted(purpose)}; this server takes files for batches only"
        raise InvalidRequest(message, param="purpose")
    for name in fields:
        message = f"{quoted(name)}: not a field that this server knows"
        raise InvalidRequest(message, reason="unsupported_parameter", param=name[:64])
    if not upload.has_file or not upload.num_bytes:
        raise InvalidRequest("file: a file with something in it is needed", param="file")
