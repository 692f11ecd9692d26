"""A request with several prompts, each of which is served as a request of its own.

Every prompt has its own reservation, tokens, picks and attempts, under an id that begins with the
request's; a few of them run at once. Their answers share the client's: choices are numbered on from
prompt to prompt. The first failure ends all of them (decision 0057).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from baton.system.clock import Clock
from baton.wire.failures import BatonError, InvalidRequest
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.incoming import AnswerSink, Client, Head, Sink
from services.gateway.request.job import ValidRequest
from services.gateway.request.trace import RequestTrace, Stage

MAX_AT_ONCE = 8
# None of them is decoded.
MAX_VECTORS_AT_ONCE = 32
# The field of each endpoint that lists prompts, where that has another name.
_LISTS = {"embeddings": "input", "rerank": "documents", "score": "text_2"}

Serve = Callable[[ValidRequest, Sink, RequestTrace], Awaitable[None]]


class PromptList:
    """The prompts of one valid request. `run` them once; `serve` serves a single one."""

    def __init__(
        self, valid: ValidRequest, sink: Sink, trace: RequestTrace, auditor: GatewayAuditor
    ) -> None:
        self._valid = valid
        self._trace = trace
        self._auditor = auditor
        self._answer = _SharedAnswer(valid, sink)
        self._places = asyncio.Semaphore(_num_at_once(valid))

    async def run(self, serve: Serve, clock: Clock) -> None:
        """Serve all prompts. Raises the first failure, when the other prompts have ended."""
        trace, num_prompts = self._trace, len(self._valid.request.prompts)
        trace.stage = Stage.DECODE
        parts: list[RequestTrace] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(num_prompts):
                    tasks.create_task(self._serve(number, serve, parts, clock))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            trace.timer.mark(Stage.DECODE)
            _add_up(trace, parts)
        trace.stage = Stage.FLUSH
        await self._answer.end(trace)

    async def _serve(
        self, number: int, serve: Serve, parts: list[RequestTrace], clock: Clock
    ) -> None:
        async with self._places:
            valid, trace = self._part(number, clock)
            parts.append(trace)
            with trace.span, self._auditor.request(trace):
                try:
                    await serve(valid, self._answer.sink_of(number), trace)
                except InvalidRequest as error:
                    raise _named(error, number, valid.request) from error

    def _part(self, number: int, clock: Clock) -> tuple[ValidRequest, RequestTrace]:
        """The request of one prompt. Its first token is due in the client's time from now on."""
        valid, trace = self._valid, self._trace
        incoming = replace(
            valid.incoming,
            request_id=f"{valid.incoming.request_id}.{number}",
            traceparent=trace.span.traceparent,
            deadline_s=valid.deadlines.left_s,
        )
        part = replace(
            valid,
            incoming=incoming,
            deadlines=incoming.deadlines(valid.deadlines.token_gap_s, clock),
            request=replace(valid.request, prompt=valid.request.prompts[number]),
        )
        part_trace = RequestTrace(incoming, trace.client, clock)
        part_trace.tenant, part_trace.model_name = trace.tenant, trace.model_name
        return part, part_trace


class _SharedAnswer:
    """The client's one answer. One prompt at a time writes to it."""

    def __init__(self, valid: ValidRequest, sink: Sink) -> None:
        self._valid = valid
        self._sink = sink
        self._answer: AnswerSink | None = None
        self._writing = asyncio.Lock()
        self._has_started = False
        self._usages: list[Usage] = []
        self._last_head: Head | None = None

    def sink_of(self, number: int) -> Sink:
        """The sink of one prompt."""
        return _PromptSink(self, number * self._valid.request.num_choices, self._sink)

    def open(self, identity: Identity, request: GenerationRequest) -> None:
        """Open the answer, when the first of the prompts is ready to run."""
        if self._answer is None:
            whole = replace(
                identity,
                request_id=self._valid.request_id,
                num_choices=identity.num_choices * len(self._valid.request.prompts),
            )
            self._answer = self._sink.opened(whole, request)

    async def start(self, head: Head) -> None:
        """Start the answer with the first token of any prompt."""
        async with self._writing:
            if not self._has_started:
                self._has_started = True
                await self._opened.started(head)

    async def write(self, batch: list[Delta]) -> None:
        """Write new text of one prompt."""
        async with self._writing:
            await self._opened.deltas(batch)

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        """Write new text of one prompt if that needs no wait; True if so."""
        return not self._writing.locked() and self._opened.offer(batch, now_s)

    def note_end(self, usage: Usage, head: Head) -> None:
        """Note that a prompt's answer is complete."""
        self._usages.append(usage)
        self._last_head = head

    async def end(self, trace: RequestTrace) -> None:
        """End the answer: all prompts are served."""
        assert self._last_head is not None, "a list has prompts"
        usage = Usage(
            sum(each.num_prompt_tokens for each in self._usages),
            sum(each.num_cached_tokens for each in self._usages),
            sum(each.num_output_tokens for each in self._usages),
        )
        head = replace(self._last_head, stages=dict(trace.timer.stages))
        await self._opened.finished(usage, head)

    @property
    def _opened(self) -> AnswerSink:
        assert self._answer is not None, "a prompt opens the answer before it runs"
        return self._answer


class _PromptSink:
    """The destination of one prompt's answer: a part of the client's."""

    def __init__(self, shared: _SharedAnswer, first_choice: int, client: Client) -> None:
        self._shared = shared
        self._first_choice = first_choice
        self._client = client

    @property
    def gone_reason(self) -> str:
        return self._client.gone_reason

    @property
    def gone_s(self) -> float | None:
        return self._client.gone_s

    @property
    def has_left(self) -> bool:
        return self._client.has_left

    def opened(self, identity: Identity, request: GenerationRequest) -> AnswerSink:
        self._shared.open(identity, request)
        return self

    async def started(self, head: Head) -> None:
        await self._shared.start(head)

    async def deltas(self, batch: list[Delta]) -> None:
        await self._shared.write(self._numbered(batch))

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        return self._shared.offer(self._numbered(batch), now_s)

    def _numbered(self, batch: list[Delta]) -> list[Delta]:
        first = self._first_choice
        return [replace(each, choice=first + each.choice) for each in batch]

    async def finished(self, usage: Usage, head: Head) -> None:
        self._shared.note_end(usage, head)


def _num_at_once(valid: ValidRequest) -> int:
    """The prompts that run at once: no more than the key may have open."""
    accounts = valid.principal.limits_for(valid.model.name)
    most = MAX_AT_ONCE if valid.request.vector is None else MAX_VECTORS_AT_ONCE
    return min([most, *(each.concurrency for each in accounts if each.concurrency)])


def _add_up(trace: RequestTrace, parts: list[RequestTrace]) -> None:
    """Count what the prompts used as the usage of the whole request, for its access line."""
    usage = trace.usage
    usage.choices = [choice for part in parts for choice in part.usage.choices]
    usage.num_prompt_tokens = sum(part.usage.num_prompt_tokens for part in parts)
    usage.num_attempts = sum(part.usage.num_attempts for part in parts)
    usage.num_received = sum(part.usage.num_received for part in parts)


def _named(error: InvalidRequest, number: int, request: GenerationRequest) -> BatonError:
    """The failure of a prompt with the prompt's place in the list of its request."""
    own = "messages" if isinstance(request.prompt, ChatMessages) else "prompt"
    head, is_prompt, rest = error.param.partition(own)
    if head or not is_prompt:
        return error
    param = f"{_LISTS.get(request.endpoint, 'prompt')}[{number}]{rest}"
    return InvalidRequest(f"{param}: {error.message}", reason=error.reason, param=param)
