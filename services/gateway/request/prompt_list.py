"""A request with several prompts, each of which is served as a request of its own.

Every prompt has its own picks and attempts, under an id that begins with the request's; a few of
them run at once. Their answers share the client's: choices are numbered on from prompt to prompt.
The first failure ends all of them (decision 0057). Each prompt has its own reservation, but for
prompts whose answer is a vector: one holds the tokens of all (decision 0064).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from baton.system.clock import Clock
from baton.wire.engine_time import add_time
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
    """The prompts of one valid request. `serve` them once, then `end` the answer."""

    def __init__(
        self,
        valid: ValidRequest,
        sink: Sink,
        trace: RequestTrace,
        auditor: GatewayAuditor,
        clock: Clock,
    ) -> None:
        self._valid = valid
        self._trace = trace
        self._auditor = auditor
        self._clock = clock
        self._answer = _SharedAnswer(valid, sink)

    async def each(self, work: Callable[[ValidRequest, int], Awaitable[None]]) -> None:
        """Do something with each prompt, a few at once. Raises the first failure, when the work on
        the others has ended."""
        num_prompts = len(self._valid.request.prompts)
        numbers = iter(range(num_prompts))

        async def work_on() -> None:
            for number in numbers:
                await self._work(work, number)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_num_at_once(self._valid), num_prompts)):
                    tasks.create_task(work_on())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def serve(self, serve: Serve) -> None:
        """Serve all prompts; `serve` serves a single one. Raises as `each` does."""
        trace = self._trace
        trace.stage = Stage.DECODE
        parts: list[RequestTrace] = []

        async def serve_one(valid: ValidRequest, number: int) -> None:
            part = self._trace_of(valid)
            parts.append(part)
            with part.span, self._auditor.request(part):
                await serve(valid, self._answer.sink_of(number), part)

        try:
            await self.each(serve_one)
        finally:
            trace.timer.mark(Stage.DECODE)
            if self._valid.request.vector is None:
                _add_up(trace, parts)
            else:
                _add_up_vectors(trace, parts)

    async def end(self) -> None:
        """End the answer: everything is settled."""
        self._trace.stage = Stage.FLUSH
        await self._answer.end(self._trace)

    async def _work(
        self, work: Callable[[ValidRequest, int], Awaitable[None]], number: int
    ) -> None:
        valid = self._part(number)
        try:
            await work(valid, number)
        except InvalidRequest as error:
            raise _named(error, number, valid.request) from error

    def _part(self, number: int) -> ValidRequest:
        """The request of one prompt. Its first token is due in the client's time from now on."""
        valid = self._valid
        incoming = replace(
            valid.incoming,
            request_id=f"{valid.incoming.request_id}.{number}",
            deadline_s=valid.deadlines.left_s,
        )
        request = replace(
            valid.request,
            prompt=valid.request.prompts[number],
            prompts=valid.request.prompts if valid.request.vector is None else (),
        )
        deadlines = incoming.deadlines(valid.deadlines.token_gap_s, self._clock)
        return replace(
            valid, incoming=incoming, deadlines=deadlines, request=request, asked=request
        )

    def _trace_of(self, part: ValidRequest) -> RequestTrace:
        trace = RequestTrace(part.incoming, self._trace.client, self._clock, self._trace)
        trace.tenant, trace.model_name = self._trace.tenant, self._trace.model_name
        return trace


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
    """The prompts that run at once: no more than the key may have open, where each is a request of
    its key."""
    if valid.request.vector is not None:
        return MAX_VECTORS_AT_ONCE
    accounts = valid.principal.limits_for(valid.model.name)
    return min([MAX_AT_ONCE, *(each.concurrency for each in accounts if each.concurrency)])


def _add_up(trace: RequestTrace, parts: list[RequestTrace]) -> None:
    """Count what the prompts used as the usage of the whole request, for its access line."""
    usage = trace.usage
    usage.choices = [choice for part in parts for choice in part.usage.choices]
    usage.num_prompt_tokens = sum(part.usage.num_prompt_tokens for part in parts)
    usage.num_submits = sum(part.usage.num_submits for part in parts)
    usage.num_refusals = sum(part.usage.num_refusals for part in parts)
    _add_up_attempts(trace, parts)
    usage.num_received = sum(part.usage.num_received for part in parts)


def _add_up_vectors(trace: RequestTrace, parts: list[RequestTrace]) -> None:
    """Count what the prompts used as the usage of the whole request, for its record: it is settled
    as one. The end of one stands for that of all."""
    usage, used = trace.usage, [part.usage for part in parts]
    read = [each for each in used if each.prompt_was_read]
    usage.choices = used[0].choices if used else ()
    usage.prompt_was_read = bool(read)
    usage.num_prompt_tokens = sum(each.num_prompt_tokens for each in read)
    usage.num_cached = {0: sum(each.num_cached_tokens for each in read)}
    usage.num_submits = max((each.num_attempts for each in used), default=0)
    _add_up_attempts(trace, parts)
    for each in used:
        add_time(usage.engine, each.engine)


def _add_up_attempts(trace: RequestTrace, parts: list[RequestTrace]) -> None:
    trace.attempts.workers = [worker for part in parts for worker in part.attempts.workers]
    firsts = [part.first_token_s for part in parts if part.first_token_s is not None]
    trace.first_token_s = min(firsts, default=None)


def _named(error: InvalidRequest, number: int, request: GenerationRequest) -> BatonError:
    """The failure of a prompt with the prompt's place in the list of its request."""
    own = "messages" if isinstance(request.prompt, ChatMessages) else "prompt"
    head, is_prompt, rest = error.param.partition(own)
    if head or not is_prompt:
        return error
    param = f"{_LISTS.get(request.endpoint, 'prompt')}[{number}]{rest}"
    return InvalidRequest(f"{param}: {error.message}", reason=error.reason, param=param)
