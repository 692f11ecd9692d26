"""One line of a batch as a request: the pipeline serves it like a client's, behind all others."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

from baton.wire.failures import BatonError
from services.gateway.batches.lines import Line, answer_line
from services.gateway.batches.store import LineResult
from services.gateway.endpoints import ENDPOINTS
from services.gateway.openai.collected import gathered
from services.gateway.openai.endpoints import AnswerFormat, Endpoint
from services.gateway.openai.errors import error_body
from services.gateway.openai.generation import Delta, GenerationRequest, Identity, Usage
from services.gateway.request.incoming import Head, IncomingRequest
from services.gateway.request.pipeline import Pipeline
from services.gateway.stored.store import too_large
from services.gateway.tenants.principal import KnownKey, VouchedIdentity

MAX_REQUEST_S = 3600.0
# Failures that pass.
_WAITED_FOR = (429, 503)
_OK = 200


class _LineAnswer:
    """The sink of an answer that becomes a line; it never leaves. Of an answer that is too large
    for one there is no more than that."""

    gone_reason = "cancelled"
    gone_s: float | None = None
    has_left = False

    def __init__(self, endpoint: Endpoint, max_bytes: int) -> None:
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._format: AnswerFormat | None = None
        self.body = b""
        self.usage = Usage(0, 0, 0)

    def opened(self, identity: Identity, request: GenerationRequest) -> "_LineAnswer":
        self._format = self._endpoint.answer(identity, request)
        return self

    async def started(self, head: Head) -> None:
        """Write nothing: the answer is written when all of it is there."""

    async def deltas(self, batch: list[Delta]) -> None:
        self.offer(batch, 0.0)

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        assert self._format is not None, "opened"
        self._format.collect(batch)
        return True

    async def finished(self, usage: Usage, head: Head) -> None:
        assert self._format is not None, "opened"
        pieces = await gathered(iter(self._format.whole(usage)), self._max_bytes)
        self.body, self.usage = b"".join(pieces), usage


class LineRequests:
    """The requests of one batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        rng: Random,
        batch: Mapping[str, str],
        max_answer_bytes: int,
    ) -> None:
        """`batch`: the fields of its record."""
        self._max_answer_bytes = max_answer_bytes
        self._pipeline = pipeline
        self._rng = rng
        self._batch_id = batch["id"]
        self._owner = owner_of(batch["owner"])
        # A batch that an older gateway made has none.
        self._traceparent = batch.get("traceparent", "")

    async def answer(self, line: Line, endpoint: str) -> LineResult:
        """The answer to a line, which may be a refusal. Raises BatonError for a failure that
        passes."""
        sink = _LineAnswer(ENDPOINTS[endpoint], self._max_answer_bytes)
        incoming = self._incoming(line, ENDPOINTS[endpoint])
        name = f"batch_req_{self._rng.getrandbits(128):032x}"
        try:
            await self._pipeline.run(incoming, sink)
            if len(sink.body) > self._max_answer_bytes:
                raise too_large("the answer to one line of a batch")
        except BatonError as error:
            status = error.row.http_status
            if status in _WAITED_FOR:
                raise
            body = error_body(error)
            text = answer_line(name, line.custom_id, incoming.request_id, status, body)
            return LineResult(line.number, text, True, {})
        text = answer_line(name, line.custom_id, incoming.request_id, _OK, sink.body)
        return LineResult(line.number, text, False, _counts(sink.usage))

    def _incoming(self, line: Line, endpoint: Endpoint) -> IncomingRequest:
        async def read_body(need: Callable[[int], None]) -> bytes:
            need(len(line.body))
            return line.body

        return IncomingRequest(
            request_id=f"req_{self._rng.getrandbits(128):032x}",
            client_request_id=self._batch_id,
            endpoint=endpoint,
            read_body=read_body,
            num_body_bytes=len(line.body),
            authorization=self._owner,
            deadline_s=MAX_REQUEST_S,
            is_batch=True,
            links=((self._traceparent, "batch"),),
        )


def owner_json(owner: VouchedIdentity | KnownKey) -> str:
    """The owner of a batch as it is kept: no key can be read from it."""
    if isinstance(owner, KnownKey):
        fields: dict[str, Any] = {"digests": [digest.hex() for digest in owner.digests]}
    else:
        fields = {"identity": owner.name, "models": owner.models}
    return msgspec.json.encode(fields).decode()


def owner_of(kept: str) -> VouchedIdentity | KnownKey:
    """The owner from what is kept."""
    fields = msgspec.json.decode(kept)
    if "digests" in fields:
        return KnownKey(tuple(bytes.fromhex(digest) for digest in fields["digests"]))
    models = fields["models"]
    return VouchedIdentity(fields["identity"], None if models is None else tuple(models))


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
        "reasoning_tokens": usage.num_reasoning_tokens,
    }
