"""The stages of a request from top to bottom; the only file that knows their order.

    authenticate -> validate -> reserve -> tokenize -> attempts -> settle
                                                       pick -> submit -> tokens (attempts.py)

A small prompt of a key that will hardly be refused is tokenized while its reservation is made
(decision 0069). Each stage returns what the next ones need. Whatever was reserved is settled
exactly once, however the request ends (request/reservation.py), and the answer sink's `finished`
comes only after that.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from baton.runtime import logs
from baton.wire.failures import BatonError, Cancelled, DeadlineExceeded, InternalFailure, Overloaded
from baton.wire.prefix_hash import derive_cache_key
from baton.wire.v1 import quota_pb2, tokenizer_pb2
from services.gateway.openai.generation import ChatMessages, GenerationRequest, Identity, Usage
from services.gateway.request import reports, submission
from services.gateway.request.attempts import Attempts
from services.gateway.request.deps import PipelineDeps
from services.gateway.request.incoming import AnswerSink, Deadlines, IncomingRequest, Repeated, Sink
from services.gateway.request.job import Job, Prompt, TokenCounts, ValidRequest
from services.gateway.request.prompt_estimate import num_prompt_bytes
from services.gateway.request.prompt_list import PromptList
from services.gateway.request.room import LARGE_BODY_BYTES
from services.gateway.request.successor import MAX_SUCCESSORS, successor_of
from services.gateway.request.token_answer import (
    tell_text,
    tell_tokens,
    token_identity,
    token_texts,
)
from services.gateway.request.trace import RequestTrace, Stage
from services.gateway.routing.full_lines import Place
from services.gateway.routing.models import ServedModel
from services.gateway.safety.screen import check_prompt
from services.gateway.tenants.lease import Lease
from services.gateway.tenants.principal import Principal
from services.gateway.text.detokenize import TextModel
from services.gateway.vectors.fitting_models import bytes_of_list, fitted

AUTHENTICATE_TIMEOUT_S = 1.0
ENCODE_TIMEOUT_S = 10.0
# A larger prompt is tokenized when it has its reservation.
MAX_EARLY_BYTES = 16 * 1024
# The rules of calls of longer ones take milliseconds to write, and are written beside the event
# loop.
LARGE_TOOLS_BYTES = 16 * 1024
# The attempts of longer prompts are prepared beside it as well: that takes up to 0.2 s.
LARGE_PROMPT_TOKENS = 16 * 1024

_log = logs.get("pipeline")


class Pipeline:
    """Serves any number of requests at once."""

    def __init__(self, deps: PipelineDeps) -> None:
        self._deps = deps

    async def run(self, incoming: IncomingRequest, sink: Sink) -> None:
        """Serve one request to its end. Cancelling it frees everything.

        Raises BatonError, which the caller turns into a status or, once the answer has started,
        into the stream's one error event.
        """
        trace = RequestTrace(incoming, sink, self._deps.clock)
        if incoming.follow is not None:
            incoming.follow(trace.head)
        with self._deps.auditor.request(trace), reports.of_request(trace, self._deps.kept_traces):
            try:
                async with asyncio.timeout(incoming.deadline_s) as trace.timeout:
                    await self._serve(incoming, sink, trace)
            except (BatonError, Repeated):
                raise
            except TimeoutError:
                if trace.is_cancelled:
                    raise Cancelled("the request was cancelled by its id") from None
                raise DeadlineExceeded(f"not finished within {incoming.deadline_s:g} s") from None
            # The root of a request: a bug is answered, counted and logged like any other failure.
            except Exception as bug:
                _log.bug("request_failed", bug, request_id=trace.request_id)
                raise InternalFailure("a bug of ours; its request id is in our log") from bug

    def cancel(self, request_id: str, tenant: str) -> bool:
        """End a running request of this tenant; False when there is none. A prompt of a list ends
        with its request, and not alone."""
        trace = self._deps.auditor.running_one(request_id)
        if trace is None or trace.tenant != tenant or trace.timeout is None:
            return False
        trace.cancel()
        return True

    async def _serve(self, incoming: IncomingRequest, sink: Sink, trace: RequestTrace) -> None:
        deadlines = incoming.deadlines(self._deps.limits.token_gap_s, self._deps.clock)
        principal = await self._authenticate(incoming, deadlines, trace)
        with self._deps.open_requests.one_of(principal.tenant):
            asked, model, text_model = await self._validate(incoming, principal, trace)
            request = await self._with_defaults(asked, text_model)
            valid = ValidRequest(incoming, deadlines, principal, request, model, asked)
            if request.prompts:
                prompts = PromptList(valid, sink, trace, self._deps.auditor, self._deps.clock)
                if request.vector is None:
                    await prompts.serve(partial(self._answer, text_model))
                    await prompts.end()
                    return
                rooms = self._deps.vector_rooms
                num_bytes = bytes_of_list(request, text_model.pooling, rooms.most_of_tenant)
                async with rooms.room(principal.tenant, num_bytes):
                    await self._answer_together(text_model, valid, prompts, trace)
                    await prompts.end()
            elif incoming.endpoint.generates:
                await self._answer(text_model, valid, sink, trace)
            else:
                await self._tell(text_model, valid, sink, trace)

    async def _answer(
        self, text_model: TextModel, valid: ValidRequest, sink: Sink, trace: RequestTrace
    ) -> None:
        reserve = self._reserve_request(valid, text_model)
        async with (
            self._tokenizing(valid, text_model, trace) as tokenized,
            self._deps.reservations.reserve(valid, reserve, trace) as lease,
        ):
            job = self._job(valid, await tokenized())
            counts = TokenCounts(job.prompt.num_tokens, job.plan.num_expected_tokens)
            await self._deps.reservations.fit(job, counts, lease, trace)
            answer_sink, usage = await self._answered(job, lease, sink, trace)
        trace.stage = Stage.FLUSH
        await answer_sink.finished(usage, trace.head())

    async def _answer_together(
        self, text_model: TextModel, valid: ValidRequest, prompts: PromptList, trace: RequestTrace
    ) -> None:
        """Answer a list of prompts with a vector of each: it is one request of its key, and one
        reservation holds the tokens of all."""
        reserve, tokenized = self._reserve_request(valid, text_model), dict[str, Prompt]()

        async def tokenize(part: ValidRequest, number: int) -> None:
            tokenized[part.request_id] = await self._tokenize(part, text_model, trace)

        async def compute(part: ValidRequest, sink: Sink, part_trace: RequestTrace) -> None:
            part_trace.lease = lease
            job = self._job(part, tokenized.pop(part.request_id))
            part_trace.usage.num_prompt_tokens = job.prompt.num_tokens
            # No token follows that would need more than was granted.
            answer_sink, usage = await self._answered(job, replace(lease), sink, part_trace)
            await answer_sink.finished(usage, part_trace.head())

        async with self._deps.reservations.reserve(valid, reserve, trace) as lease:
            await prompts.each(tokenize)
            await self._fit_together(valid, tokenized.values(), lease, trace)
            await prompts.serve(compute)

    async def _fit_together(
        self, valid: ValidRequest, prompts: Iterable[Prompt], lease: Lease, trace: RequestTrace
    ) -> None:
        """Hold the tokens of all prompts."""
        num_tokens = sum(prompt.num_tokens for prompt in prompts)
        await self._deps.reservations.fit(valid, TokenCounts(num_tokens), lease, trace)

    async def _answered(
        self, job: Job, lease: Lease, sink: Sink, trace: RequestTrace
    ) -> tuple[AnswerSink, Usage]:
        """Let workers answer; with another prompt where the model was replaced meanwhile."""
        for _ in range(MAX_SUCCESSORS):
            try:
                return await self._compute(job, lease, sink, trace)
            except BatonError as error:
                successor = successor_of(job, error, trace, self._deps.directory)
                if successor is None:
                    raise
            job = await self._moved(job, successor, trace)
            if job.request.vector is None:
                counts = TokenCounts(job.prompt.num_tokens, job.plan.num_expected_tokens)
                await self._deps.reservations.fit(job, counts, lease, trace)
        return await self._compute(job, lease, sink, trace)

    async def _moved(self, job: Job, model: ServedModel, trace: RequestTrace) -> Job:
        """The same request for another model."""
        text_model = await self._deps.artifacts.text_model(model.model_fp)
        request = await self._with_defaults(job.asked, text_model)
        valid = ValidRequest(job.incoming, job.deadlines, job.principal, request, model, job.asked)
        return self._job(valid, await self._tokenize(valid, text_model, trace))

    async def _compute(
        self, job: Job, lease: Lease, sink: Sink, trace: RequestTrace
    ) -> tuple[AnswerSink, Usage]:
        """Let workers answer; returns the sink that has all but the end of the answer."""
        if self._deps.attempts.safety is not None:
            with trace.measure(Stage.SAFETY):
                await check_prompt(self._deps.attempts.safety, job.request, token_texts(job))
        answer_sink = self._open(job, sink, trace)
        with reports.of_tokens(trace, job.request.num_choices, job.plan.max_tokens):
            return answer_sink, await self._attempt(job, lease, answer_sink, trace)

    async def _tell(
        self, text_model: TextModel, valid: ValidRequest, sink: Sink, trace: RequestTrace
    ) -> None:
        """Answer a request for tokens or their text. It counts as a request of its key."""
        reserve, request = submission.reserve_no_tokens(valid), valid.request
        async with self._deps.reservations.reserve(valid, reserve, trace):
            answer_sink = sink.opened(token_identity(valid), request)
            if request.endpoint == "detokenize":
                num_tokens = await tell_text(valid, text_model, answer_sink)
            else:
                prompt = await self._tokenize(valid, text_model, trace)
                num_tokens = prompt.num_tokens
            if request.endpoint == "tokenize":
                names = request.extras.token_names
                await tell_tokens(prompt.token_ids, text_model, answer_sink, with_names=names)
        trace.stage = Stage.FLUSH
        await answer_sink.finished(Usage(num_tokens, 0, 0), trace.head())

    def _open(self, job: Job, sink: Sink, trace: RequestTrace) -> AnswerSink:
        identity = _identity(job, trace)
        answer_sink = sink.opened(identity, job.request)
        if job.request.thread is None:
            return answer_sink
        return self._deps.threads.keeping(answer_sink, identity, job.request)

    async def _authenticate(
        self, incoming: IncomingRequest, deadlines: Deadlines, trace: RequestTrace
    ) -> Principal:
        with trace.measure(Stage.AUTH) as span:
            context = trace.call_context(span, deadlines.of_call(AUTHENTICATE_TIMEOUT_S))
            principal = await self._deps.authenticator.authenticate(
                incoming.authorization, context, incoming.client_address
            )
        trace.tenant = principal.tenant
        return principal.for_batch() if incoming.is_batch else principal

    async def _validate(
        self, incoming: IncomingRequest, principal: Principal, trace: RequestTrace
    ) -> tuple[GenerationRequest, ServedModel, TextModel]:
        refusals, full_lines = self._deps.refusals, self._deps.full_lines
        with trace.measure(Stage.VALIDATE):
            if refusals.holds_any:
                refusals.check(principal.key_id)
            request = await self._parse(incoming, principal.tenant)
            if request.thread is not None:
                request = await self._deps.threads.resolve(request, request.thread, principal)
            model = self._deps.directory.resolve(request.model, principal.allowed_models)
            generates = incoming.endpoint.generates
            if refusals.holds_any and generates:
                refusals.check(principal.key_id, num_prompt_bytes(request))
            if full_lines.holds_any and generates:
                full_lines.check(_place(incoming, principal, request, model))
            trace.model_name, trace.is_streamed = model.name, request.stream
            text_model = await self._deps.artifacts.text_model(model.model_fp)
            if generates and (request.vector is not None or text_model.pooling is not None):
                has_template = text_model.has_pair_template
                request = fitted(request, text_model.pooling, has_pair_template=has_template)
        return request, model, text_model

    async def _with_defaults(
        self, request: GenerationRequest, text_model: TextModel
    ) -> GenerationRequest:
        prompt = request.prompt
        tools = prompt.tools if isinstance(prompt, ChatMessages) else None
        if tools is None or len(tools.tools_json) <= LARGE_TOOLS_BYTES:
            return submission.with_defaults(request, text_model)
        return await self._deps.in_thread(partial(submission.with_defaults, request, text_model))

    async def _parse(self, incoming: IncomingRequest, tenant: str) -> GenerationRequest:
        bodies, endpoint = self._deps.bodies, incoming.endpoint
        async with bodies.room(tenant, incoming.num_body_bytes) as room:
            body = await incoming.read_body(room.need)
            if incoming.on_body is not None:
                await incoming.on_body(tenant, body)
            if len(body) <= LARGE_BODY_BYTES:
                return endpoint.parse(body)
            return await bodies.parse(tenant, endpoint.name, body)

    def _reserve_request(
        self, valid: ValidRequest, text_model: TextModel
    ) -> quota_pb2.ReserveRequest:
        estimates, request, model = self._deps.estimates, valid.request, valid.model
        if _is_shortened(request):
            most_tokens = model.max_model_len - self._room_of(valid)
            estimate = estimates.estimate_shortened(request, model, most_tokens)
        else:
            of_request = estimates.estimate if request.vector is None else estimates.estimate_all
            estimate = of_request(request, model, text_model.longest_token)
        default_reservation = self._deps.limits.default_output_reservation
        return submission.reserve_estimate(valid, estimate, default_reservation)

    @asynccontextmanager
    async def _tokenizing(
        self, valid: ValidRequest, text_model: TextModel, trace: RequestTrace
    ) -> AsyncIterator[Callable[[], Awaitable[Prompt]]]:
        """Tokenize a prompt by its result's call; from now on, if that is hardly for nothing."""
        if not self._may_tokenize_early(valid):
            yield partial(self._tokenize, valid, text_model, trace)
            return
        task = asyncio.create_task(self._tokenize(valid, text_model, trace))
        try:
            yield lambda: task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # the reservation's own failure goes first

    def _may_tokenize_early(self, valid: ValidRequest) -> bool:
        is_unlikely = self._deps.refusals.is_unlikely(valid.principal.key_id)
        return is_unlikely and num_prompt_bytes(valid.request) <= MAX_EARLY_BYTES

    async def _tokenize(
        self, valid: ValidRequest, text_model: TextModel, trace: RequestTrace
    ) -> Prompt:
        deps, tenant = self._deps, valid.principal.tenant
        cache_key = derive_cache_key(deps.server_secret, tenant, valid.request.cache_salt)
        is_shortened = _is_shortened(valid.request)

        async def encode(tried: ValidRequest) -> tokenizer_pb2.EncodeResponse:
            return await deps.tokenizer.encode(
                submission.encode_request(tried, cache_key),
                trace.call_context(span, valid.deadlines.of_call(ENCODE_TIMEOUT_S)),
            )

        with trace.measure(Stage.TOKENIZE) as span:
            if is_shortened:
                encoded = await deps.threads.encode_fitting(valid, encode, self._room_of(valid))
            else:
                encoded = await encode(valid)
        prompt = Prompt(encoded.token_ids, encoded.block_hashes, cache_key, text_model)
        trace.usage.num_prompt_tokens = prompt.num_tokens
        if not is_shortened:
            deps.estimates.note(valid.request, valid.model, prompt.num_tokens)
        return prompt

    def _room_of(self, valid: ValidRequest) -> int:
        """The tokens that a prompt that has to be shortened leaves for the answer."""
        wanted = valid.request.max_tokens or self._deps.limits.default_output_reservation
        return min(wanted, max(valid.model.max_model_len // 4, 1))

    def _job(self, valid: ValidRequest, prompt: Prompt) -> Job:
        request, model = valid.request, valid.model
        submission.check(request, model, prompt.num_tokens)
        plan = submission.plan_output(
            request,
            model.max_model_len - prompt.num_tokens,
            self._deps.limits.default_output_reservation,
            self._deps.limits.max_logprobs,
            self._deps.rng,
        )
        return valid.job(prompt, plan)

    async def _attempt(
        self, job: Job, lease: Lease, answer_sink: AnswerSink, trace: RequestTrace
    ) -> Usage:
        make = partial(Attempts, job, lease, answer_sink, self._deps.attempts, trace)
        is_large = job.prompt.num_tokens > LARGE_PROMPT_TOKENS
        try:
            # A prompt is hashed there, and its text and its tokens are made again to be told.
            attempts = await self._deps.in_thread(make) if is_large else make()
            return await attempts.run()
        except Overloaded as refusal:
            if not trace.usage.num_submits:
                place = _place(job.incoming, job.principal, job.request, job.model)
                self._deps.full_lines.note(place, refusal)
            raise


def _is_shortened(request: GenerationRequest) -> bool:
    """True for a prompt that loses its oldest turns if it is too long."""
    return request.thread is not None and request.thread.truncates


def _place(
    incoming: IncomingRequest, principal: Principal, request: GenerationRequest, model: ServedModel
) -> Place:
    return Place(
        model.model_fp,
        principal.tenant,
        principal.priority_of(request.lateness),
        incoming.first_token_allowance_s,
        num_prompt_bytes(request),
    )


def _identity(job: Job, trace: RequestTrace) -> Identity:
    return Identity(
        request_id=job.request_id,
        created_unix_s=int(trace.started_unix_s),
        model=job.request.model,
        system_fingerprint=job.model.system_fingerprint,
        num_choices=job.request.num_choices,
        num_prompt_tokens=job.prompt.num_tokens,
        usage_at=trace.usage.for_client,
    )
