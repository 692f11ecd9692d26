"""The lines of a batch: read from its file a piece at a time, checked, and answered as lines.

A line that is empty counts for nothing; the others are numbered from 0.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from baton.wire.failures import BatonError, ModelNotFound, Unavailable, quoted
from baton.wire.plain_errors import plain
from services.gateway.batches.store import BatchStore

# A batch may ask for these; each line for the same one.
BATCH_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
MAX_LINE_BYTES = 1024 * 1024
MAX_ERRORS = 100
_PIECE_BYTES = 128 * 1024
# A store that does not answer is asked again after so long.
RETRY_S = 1.0


class _Line(msgspec.Struct):
    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    """The fields of a body that matter to its batch."""

    model: str
    # Not decoded: they may be anything.
    stream: msgspec.Raw = msgspec.Raw(b"null")
    background: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch."""

    number: int
    custom_id: str
    model: str
    body: bytes


class LineError(Exception):
    """A line, or a whole file, is not as it must be."""

    def __init__(self, code: str, message: str, line: int | None = None, param: str = "") -> None:
        super().__init__(message)
        self.shown = {"code": code, "line": line, "message": message, "param": param or None}


class LineReader:
    """The lines of one file. `line_number` is that of the last one, from 1, as editors count."""

    def __init__(self, store: BatchStore, tenant: str, file_id: str, num_bytes: int) -> None:
        self._store = store
        self._tenant = tenant
        self._file_id = file_id
        self._num_bytes = num_bytes
        self.line_number = 0

    async def texts(self) -> AsyncIterator[bytes]:
        """All lines, without their ends. Raises LineError when the file is gone, or a line too
        long."""
        begun, begin = b"", 0
        while begin < self._num_bytes:
            piece = await self._piece(begin)
            if not piece:
                raise LineError("input_file_gone", "the input file was deleted")
            begin += len(piece)
            *whole, begun = (begun + piece).split(b"\n")
            for text in whole:
                self.line_number += 1
                yield text
            if len(begun) > MAX_LINE_BYTES:
                message = f"a line has more than {MAX_LINE_BYTES} bytes"
                raise LineError("line_too_large", message, self.line_number + 1)
            # A file that is read from memory would hold the event loop otherwise.
            await asyncio.sleep(0)
        self.line_number += 1
        yield begun

    async def _piece(self, begin: int) -> bytes:
        """The next piece, also while the store is away for a while."""
        while True:
            try:
                return await self._store.content(self._tenant, self._file_id, begin, _PIECE_BYTES)
            except Unavailable:
                await asyncio.sleep(RETRY_S)

    async def numbered(self) -> AsyncIterator[tuple[int, bytes]]:
        """The lines that are not empty, with their numbers."""
        number = 0
        async for text in self.texts():
            if text.strip():
                yield number, text
                number += 1


@dataclass(slots=True)
class Checked:
    """The result of a look at all lines."""

    num_lines: int = 0
    models: set[str] = field(default_factory=set)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> str:
        """The model that all lines ask for; empty when they differ."""
        return next(iter(self.models)) if len(self.models) == 1 else ""


async def check_lines(
    reader: LineReader, endpoint: str, max_lines: int, check_model: Callable[[str], object]
) -> Checked:
    """Look at every line before the first one is answered. `check_model` raises BatonError for a
    model that cannot be asked for."""
    checked = Checked()
    names: set[str] = set()
    try:
        async for number, text in reader.numbered():
            checked.num_lines = number + 1
            if checked.num_lines > max_lines:
                raise LineError("too_many_lines", f"a batch has at most {max_lines} lines")
            try:
                line = parse_line(number, text, endpoint)
                if line.custom_id in names:
                    message = f"custom_id: {quoted(line.custom_id)} is there twice"
                    raise LineError("duplicate_custom_id", message, param="custom_id")
                names.add(line.custom_id)
                if line.model not in checked.models:
                    _check_model(check_model, line.model)
                    checked.models.add(line.model)
            except LineError as error:
                checked.errors.append(error.shown | {"line": reader.line_number})
                if len(checked.errors) == MAX_ERRORS:
                    return checked
        if not checked.num_lines:
            raise LineError("empty_file", "the input file has no lines")
    except LineError as error:
        checked.errors.append(error.shown)
    return checked


def _check_model(check_model: Callable[[str], object], name: str) -> None:
    try:
        check_model(name)
    except ModelNotFound as error:
        raise LineError(error.reason, error.message, param="body.model") from None
    except BatonError:
        return  # it has no worker at this moment


def parse_line(number: int, text: bytes, endpoint: str) -> Line:
    """A line as a request. Raises LineError."""
    try:
        line = msgspec.json.decode(text, type=_Line)
        body = msgspec.json.decode(line.body, type=_Body)
    except msgspec.ValidationError as error:
        raise LineError("invalid_request", plain(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_json_line", f"not a JSON object: {error}") from None
    if line.method != "POST":
        raise LineError("invalid_method", f"method: got {quoted(line.method)}; expected POST")
    if line.url != endpoint:
        message = f"url: got {quoted(line.url)}; expected {endpoint}, as the batch"
        raise LineError("mismatched_url", message, param="url")
    for name in ("stream", "background"):
        if bytes(getattr(body, name)) not in (b"null", b"false"):
            message = f"{name}: not in a batch"
            raise LineError("unsupported_parameter", message, param=f"body.{name}")
    return Line(number, line.custom_id, body.model, bytes(line.body))


def answer_line(name: str, custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """The line of an answer, also of one that is a refusal."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _encoded(name, custom_id, response, None)


def expired_line(name: str, custom_id: str) -> bytes:
    """The line of a request that was not answered in time."""
    message = "This request could not be executed before the completion window expired."
    return _encoded(name, custom_id, None, {"code": "batch_expired", "message": message})


def _encoded(name: str, custom_id: str, response: Any, error: Any) -> bytes:
    fields = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(fields) + b"\n"


def is_done(bits: bytes, number: int) -> bool:
    """True for a line that has its answer. The first bit of each byte is the highest."""
    at, bit = divmod(number, 8)
    return at < len(bits) and bool(bits[at] & (0x80 >> bit))
