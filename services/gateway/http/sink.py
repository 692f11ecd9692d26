"""The client of an HTTP request as the destination of its answer: an event stream, or one JSON
body. The status is held back until the first token (the stream) or until the end (the body), so
that a refusal still has a status of its own."""

from collections.abc import Callable

from baton.wire.failures import BatonError, DeadlineExceeded
from services.gateway.http.response import (
    EVENT_STREAM,
    STALLED,
    STREAM_HEADERS,
    HttpResponse,
    limit_headers,
    send_error,
    server_timing,
)
from services.gateway.openai import sse
from services.gateway.openai.endpoints import AnswerFormat, Endpoint
from services.gateway.openai.generation import Delta, GenerationRequest, Identity, Usage
from services.gateway.request.incoming import Head

EXPLANATION_HEADER = "x-explanation"


class StreamedAnswer:
    """An answer as an event stream. Its status is held back until the first token."""

    def __init__(self, response: HttpResponse, format: AnswerFormat, client: "HttpSink") -> None:
        self._response = response
        self._format = format
        self._client = client

    async def started(self, head: Head) -> None:
        if not self._response.started:
            headers = {**STREAM_HEADERS, **self._client.headers_of(head)}
            await self._response.start(200, EVENT_STREAM, headers)
        elif head.explanation:
            # A keep-alive has sent the headers.
            await self._response.write(sse.comment(f"{EXPLANATION_HEADER}: {head.explanation}"))
        await self._response.write_opening(self._format.opening())

    async def deltas(self, batch: list[Delta]) -> None:
        await self._response.write(self._format.deltas(batch))

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        if not self._response.has_room:
            return False
        self._response.write_now(self._format.deltas(batch), now_s)
        return True

    async def finished(self, usage: Usage, head: Head) -> None:
        await self._response.end_with(self._format.closing(usage))

    async def failed(self, error: BatonError) -> None:
        """End the stream with one error event, or refuse the request if it has no status yet."""
        if self._response.started:
            await self._response.end_with(self._format.failure(error))
        else:
            await self._client.refuse(error)

    async def keep_alive(self) -> None:
        """Write a comment, which clients skip."""
        if not self._response.started:
            headers = {**STREAM_HEADERS, **self._client.headers()}
            await self._response.start(200, EVENT_STREAM, headers)
        if not self._response.ended:
            await self._response.write(sse.KEEP_ALIVE)


class WholeAnswer:
    """An answer as one JSON body, which is written when all of it is there."""

    def __init__(self, response: HttpResponse, format: AnswerFormat, client: "HttpSink") -> None:
        self._response = response
        self._format = format
        self._client = client

    async def started(self, head: Head) -> None:
        """Write nothing: the status comes with the body."""

    async def deltas(self, batch: list[Delta]) -> None:
        self._format.collect(batch)

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        self._format.collect(batch)
        return True

    async def finished(self, usage: Usage, head: Head) -> None:
        await self._response.whole(200, self._format.whole(usage), self._client.headers_of(head))

    async def failed(self, error: BatonError) -> None:
        """Refuse the request, unless its body is being written already."""
        if not self._response.started:
            await self._client.refuse(error)

    async def keep_alive(self) -> None:
        """Write nothing: a JSON body has no comments."""


class HttpSink:
    """The client of one HTTP request. Its answer's form is known once the request is opened.

    `has_left` looks at the connection.
    """

    def __init__(
        self, response: HttpResponse, endpoint: Endpoint, has_left: Callable[[], bool]
    ) -> None:
        self._response = response
        self._has_left = has_left
        self._endpoint = endpoint
        self._answer: StreamedAnswer | WholeAnswer | None = None
        self._gone_reason = "cancelled"
        self._head: Callable[[], Head] | None = None
        self.gone_s: float | None = None

    def follow(self, head: Callable[[], Head]) -> None:
        """Take the function that tells the headers at any time."""
        self._head = head

    @property
    def response(self) -> HttpResponse:
        """The response, for an answer that is not the request's own."""
        return self._response

    def opened(
        self, identity: Identity, request: GenerationRequest
    ) -> StreamedAnswer | WholeAnswer:
        format = self._endpoint.answer(identity, request)
        if request.stream:
            self._answer = StreamedAnswer(self._response, format, self)
        else:
            self._answer = WholeAnswer(self._response, format, self)
        return self._answer

    async def failed(self, error: BatonError) -> None:
        """Write the failure: as a status if there is none yet, else as one error event."""
        if self._response.ended:
            return
        if self._answer is None:
            await self.refuse(error)
        else:
            await self._answer.failed(error)

    def give_up(self, reason: str) -> None:
        """Note that the request is about to be cancelled for this reason, not by its client."""
        self._gone_reason = reason

    def forget(self) -> None:
        """Let go of the request and its answer, which refer to this: so all of them are freed at
        once, and the garbage collector has nothing to find."""
        self._head = self._answer = None

    @property
    def gone_reason(self) -> str:
        return self._gone_reason

    @property
    def has_left(self) -> bool:
        return self.gone_s is not None or self._has_left()

    @property
    def has_stalled(self) -> bool:
        """The request was ended because the client took nothing for too long."""
        return self._gone_reason == STALLED

    async def watch(self) -> None:
        """Keep a silent stream alive; runs beside the request until cancelled. Raises
        DeadlineExceeded when the client stalled, which ends the request."""
        try:
            await self._response.watch(self._keep_alive)
        except DeadlineExceeded as stalled:
            self._gone_reason = stalled.reason
            raise

    def headers(self) -> dict[str, str]:
        """The headers that an answer has at any time."""
        return {} if self._head is None else self._number_headers(self._head())

    def headers_of(self, head: Head) -> dict[str, str]:
        explained = {EXPLANATION_HEADER: head.explanation} if head.explanation else {}
        return {**self._number_headers(head), **explained}

    async def refuse(self, error: BatonError) -> None:
        await send_error(self._response, error, self.headers(), self._endpoint.dialect)

    async def _keep_alive(self) -> None:
        if self._answer is not None:
            await self._answer.keep_alive()

    def _number_headers(self, head: Head) -> dict[str, str]:
        degraded = {"x-ratelimit-degraded": "1"} if head.degraded else {}
        wall_ms = round(sum(head.stages.values()) * 1000)
        return {
            "server-timing": server_timing(head.stages),
            "openai-processing-ms": str(wall_ms),
            **limit_headers(head.limits),
            **self._response.vendor_limits(self._endpoint.dialect, head.limits),
            **degraded,
        }
