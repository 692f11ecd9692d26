"""Where an answer goes: an event stream, or one JSON body. Both hold the status back until the
first token (the stream) or the end (the body), so that refusals keep theirs."""

from baton.wire.failures import BatonError, DeadlineExceeded
from services.gateway.http.response import (
    EVENT_STREAM,
    STALLED,
    HttpResponse,
    limit_headers,
    send_error,
    server_timing,
)
from services.gateway.openai import sse
from services.gateway.openai.endpoints import AnswerFormat, Endpoint
from services.gateway.openai.generation import (
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    TokenLogprob,
    Usage,
)
from services.gateway.request.incoming import Head

_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class HttpSink:
    """The sink of one HTTP request; becomes a stream or a body once the request is known."""

    def __init__(self, response: HttpResponse, endpoint: Endpoint) -> None:
        self._response = response
        self._endpoint = endpoint
        self._format: AnswerFormat | None = None
        self._streams = False
        self._gone_reason = "cancelled"
        self.gone_s: float | None = None
        self._texts: list[list[str]] = []
        self._logprobs: list[list[TokenLogprob]] = []
        self._reasons: list[FinishReason | None] = []

    def opened(self, identity: Identity, request: GenerationRequest) -> None:
        self._format = self._endpoint.answer(identity, request)
        self._streams = request.stream
        self._texts = [[] for _ in range(identity.num_choices)]
        self._logprobs = [[] for _ in range(identity.num_choices)]
        self._reasons = [None] * identity.num_choices

    async def started(self, head: Head) -> None:
        if not self._streams:
            return
        if not self._response.started:
            await self._response.start(
                200, EVENT_STREAM, {**_STREAM_HEADERS, **_head_headers(head)}
            )
        await self._response.write(self._opened_format.opening())

    async def deltas(self, batch: list[Delta]) -> None:
        if self._streams:
            await self._response.write(self._opened_format.deltas(batch))
            return
        for delta in batch:
            self._texts[delta.choice].append(delta.text)
            self._logprobs[delta.choice] += delta.logprobs
            self._reasons[delta.choice] = delta.finish_reason

    async def finished(self, usage: Usage, head: Head) -> None:
        if self._streams:
            await self._response.end(self._opened_format.closing(usage))
            return
        choices = [
            Delta(choice, "".join(pieces), self._reasons[choice], tuple(self._logprobs[choice]))
            for choice, pieces in enumerate(self._texts)
        ]
        body = self._opened_format.whole(choices, usage)
        await self._response.whole(200, body, _head_headers(head))

    async def failed(self, error: BatonError) -> None:
        """The request failed: its status if there is none yet, else one error event."""
        if self._response.ended:
            return
        if self._response.started:
            await self._response.end(self._opened_format.failure(error))
        else:
            await send_error(self._response, error)

    def give_up(self, reason: str) -> None:
        """The request is about to be cancelled for this reason, not by its client."""
        self._gone_reason = reason

    @property
    def gone_reason(self) -> str:
        return self._gone_reason

    @property
    def has_stalled(self) -> bool:
        """The request was ended because the client took nothing for too long."""
        return self._gone_reason == STALLED

    async def watch(self) -> None:
        """Keep a silent stream alive; runs beside the request until cancelled. Raises
        DeadlineExceeded when the client stalled, which ends the request."""
        try:
            await self._response.watch(self._comment)
        except DeadlineExceeded as stalled:
            self._gone_reason = stalled.reason
            raise

    async def _comment(self) -> None:
        if not self._streams:
            return
        if not self._response.started:
            await self._response.start(200, EVENT_STREAM, _STREAM_HEADERS)
        if not self._response.ended:
            await self._response.write(sse.KEEP_ALIVE)

    @property
    def _opened_format(self) -> AnswerFormat:
        assert self._format is not None, "opened first"
        return self._format


def _head_headers(head: Head) -> dict[str, str]:
    degraded = {"x-ratelimit-degraded": "1"} if head.degraded else {}
    wall_ms = round(sum(head.stages.values()) * 1000)
    return {
        "server-timing": server_timing(head.stages),
        "openai-processing-ms": str(wall_ms),
        **limit_headers(head.limits),
        **degraded,
    }
