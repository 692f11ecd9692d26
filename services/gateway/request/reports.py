"""The access line, the metrics, the stages and the span attributes of a request.

No prompt or output text, no API key, and no tenant in a metric's label.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from baton.runtime import logs
from baton.runtime.telemetry import Span, start_span
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from services.gateway import instruments
from services.gateway.request.incoming import Repeated
from services.gateway.request.trace import RequestTrace, Stage

_log = logs.get("access")


@contextmanager
def of_request(trace: RequestTrace) -> Iterator[None]:
    """Report a whole request, around which this stands: its line and its metrics, at any end."""
    instruments.GATEWAY_OPEN_REQUESTS.inc()
    try:
        yield
    except BatonError as error:
        _end(trace, error.reason, error.row.http_status)
        if not _is_of_model(trace):
            of_refusal(error)
        raise
    except Repeated:
        _end(trace, "repeated", 200)
        raise
    except BaseException:
        if trace.client.gone_s is not None:
            now_s = trace.timer.started_s + trace.timer.wall_s
            seconds = instruments.GATEWAY_CANCEL_SECONDS.labels(trace.stage)
            seconds.observe(now_s - trace.client.gone_s)
        _end(trace, trace.client.gone_reason, 499)
        raise
    else:
        _end(trace, trace.usage.finish_reasons, 200)
    finally:
        instruments.GATEWAY_OPEN_REQUESTS.dec()


def of_refusal(error: BatonError) -> None:
    """Report a request that was refused before its model was known."""
    status = str(error.row.http_status)
    instruments.GATEWAY_REFUSED_REQUESTS.labels(error.reason, status).inc()


def of_queue(trace: RequestTrace, pick_span: Span, asked_s: float, queue_s: float) -> None:
    """Report the part of the pick, just ended, that was spent in the router's queue: a stage of its
    own, unless the pick is part of a migration."""
    if pick_span.is_recorded:
        span = start_span(
            Stage.QUEUE, parent=pick_span, request_id=trace.request_id, start_s=asked_s
        )
        span.end(asked_s + queue_s)
    stages = trace.timer.stages
    if trace.stage == Stage.PICK:
        stages[Stage.PICK] -= queue_s
        stages[Stage.QUEUE] = stages.get(Stage.QUEUE, 0.0) + queue_s
    instruments.REQUEST_QUEUE_TIME.labels(trace.model_name).observe(queue_s)


def of_answer(trace: RequestTrace) -> None:
    """Report an answer that is complete to the explanation of its picks."""
    usage, stages = trace.usage, trace.timer.stages
    token_gap_s = None
    if len(usage.choices) == 1 and usage.num_output_tokens > 1 and Stage.MIGRATION not in stages:
        token_gap_s = stages.get(Stage.DECODE, 0.0) / (usage.num_output_tokens - 1)
    if trace.explanation is not None:
        trace.explanation.ended(usage.num_cached_tokens, token_gap_s)


@contextmanager
def of_tokens(trace: RequestTrace, num_choices: int, max_tokens: int) -> Iterator[None]:
    """Report the tokens of a request, around whose lease this stands, and its limit of them."""
    try:
        yield
    finally:
        _count_tokens(trace, num_choices, max_tokens)


class Timeline:
    """The stages of one request's time from its first attempt to its last token.

        prefill     from a submit to the first token (the worker's own stages take their share)
        decode      while tokens come
        move        a migration: from the loss of an attempt to the next token

    Together with the stages before and after they add up to the request's wall time.
    """

    def __init__(self, trace: RequestTrace, clock: Clock) -> None:
        self._trace = trace
        self._clock = clock
        self._has_begun = False
        self._lost_s = 0.0
        # From the loss of an attempt until the next token.
        self.migration: Span | None = None

    def submit(self) -> None:
        """Note that an attempt begins."""
        if self.migration is None:
            self._trace.stage = Stage.PREFILL

    def begin(self, worker_stages: Mapping[str, float]) -> bool:
        """Note that an attempt's first token is there, or that no token will come; True for the
        request's first one. `worker_stages`: the time that the worker spent, in seconds."""
        if self.migration is not None:
            self._trace.timer.mark(Stage.MIGRATION)
            instruments.GATEWAY_MIGRATION_SECONDS.observe(self._clock.now() - self._lost_s)
            self.migration.end()
            self.migration = None
        self._trace.stage = Stage.DECODE
        if self._has_begun:
            return False
        self._has_begun = True
        prefill_s = self._trace.timer.mark(Stage.PREFILL)
        _report_first_token(self._trace, prefill_s, worker_stages)
        explanation = self._trace.explanation
        if explanation is not None and worker_stages:
            explanation.began(self._clock.now(), worker_stages)
        return True

    def pause(self) -> None:
        """Note that an attempt is over."""
        if self.migration is not None:
            self._trace.timer.mark(Stage.MIGRATION)
        else:
            self._trace.timer.mark(Stage.DECODE if self._has_begun else Stage.PREFILL)

    def lose(self, reason: str, worker_id: str) -> bool:
        """Note that an attempt has failed and that another one follows; True when a migration
        begins with that."""
        trace = self._trace
        if self.migration is not None or not self._has_begun:
            instruments.GATEWAY_REPEATED_PICKS.labels(reason).inc()
            _log.info("repeated_pick", request_id=trace.request_id, reason=reason)
            return False
        self._lost_s = self._clock.now()
        trace.stage = Stage.MIGRATION
        self.migration = start_span(
            Stage.MIGRATION,
            parent=trace.span,
            request_id=trace.request_id,
            attributes={
                "baton.lost.epoch": trace.usage.num_attempts,
                "baton.lost.reason": reason,
                "baton.lost.worker_id": worker_id,
            },
        )
        instruments.GATEWAY_MIGRATIONS.labels(reason).inc()
        epoch = trace.usage.num_attempts
        _log.info("move", request_id=trace.request_id, reason=reason, epoch=epoch)
        return True

    def end(self) -> None:
        """Note that the request is over, however it ended."""
        if self.migration is not None:
            self.migration.fail("not_moved")
            self.migration.end()
            self.migration = None


class TokenGaps:
    """The times between deliveries of one request's tokens."""

    def __init__(self, model_name: str) -> None:
        self._tally = instruments.INTER_TOKEN_LATENCY.labels(model_name)
        self._last_s: float | None = None

    def note(self, now_s: float) -> None:
        """Note that tokens are delivered at this time."""
        if self._last_s is not None:
            gap_s, tally = now_s - self._last_s, self._tally
            tally.counts[bisect_left(tally.bounds, gap_s)] += 1
            tally.total += gap_s
        self._last_s = now_s


def _report_first_token(
    trace: RequestTrace, prefill_s: float, worker_stages: Mapping[str, float]
) -> None:
    """Report the first token. The worker's stages take their share out of `prefill`, whose rest is
    the way to the worker and back."""
    stages = trace.timer.stages
    for stage, seconds in worker_stages.items():
        share_s = min(seconds, stages[Stage.PREFILL])
        stages[Stage.PREFILL] -= share_s
        stages[stage] = stages.get(stage, 0.0) + share_s
    name, ttft_s = trace.model_name, trace.timer.wall_s
    instruments.TIME_TO_FIRST_TOKEN.labels(name).observe(ttft_s)
    operation = trace.incoming.endpoint.name
    instruments.GEN_AI_TIME_TO_FIRST_TOKEN.labels(operation, name).observe(ttft_s)
    instruments.REQUEST_PREFILL_TIME.labels(name).observe(prefill_s)


def _count_tokens(trace: RequestTrace, num_choices: int, max_tokens: int) -> None:
    name, usage = trace.model_name, trace.usage
    instruments.REQUEST_PARAMS_N.labels(name).observe(num_choices)
    instruments.REQUEST_PARAMS_MAX_TOKENS.labels(name).observe(max_tokens)
    instruments.REQUEST_PROMPT_TOKENS.labels(name).observe(usage.num_prompt_tokens)
    instruments.REQUEST_GENERATION_TOKENS.labels(name).observe(usage.num_output_tokens)
    operation, tokens = trace.incoming.endpoint.name, instruments.GEN_AI_TOKEN_USAGE
    tokens.labels(operation, name, "input").observe(usage.num_prompt_tokens)
    tokens.labels(operation, name, "output").observe(usage.num_output_tokens)
    instruments.GATEWAY_WASTED_TOKENS.labels(name).inc(usage.num_wasted_tokens)


def _end(trace: RequestTrace, outcome: str, status: int) -> None:
    usage, stages = trace.usage, trace.timer.stages
    _log.info(
        "request",
        request_id=trace.request_id,
        client_request_id=trace.incoming.client_request_id,
        endpoint=trace.incoming.endpoint.name,
        status=status,
        outcome=outcome,
        tenant=trace.tenant,
        model=trace.model_name,
        num_prompt_tokens=usage.num_prompt_tokens,
        num_output_tokens=usage.num_output_tokens,
        stages=" ".join([f"{name}={s * 1000:.1f}ms" for name, s in stages.items()]),
    )
    if trace.span.is_recorded:
        _set_attributes(trace, outcome)
    if _is_of_model(trace):
        _count(trace, outcome, status)


def _set_attributes(trace: RequestTrace, outcome: str) -> None:
    span, usage = trace.span, trace.usage
    span.set("gen_ai.operation.name", trace.incoming.endpoint.name)
    span.set("gen_ai.usage.input_tokens", usage.num_prompt_tokens)
    span.set("gen_ai.usage.output_tokens", usage.num_output_tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", usage.num_cached_tokens)
    if usage.num_reasoning_tokens:
        span.set("gen_ai.usage.reasoning.output_tokens", usage.num_reasoning_tokens)
    span.set("baton.outcome", outcome)
    span.set("baton.num_attempts", usage.num_attempts)
    if trace.model_name:
        span.set("gen_ai.request.model", trace.model_name)
    if trace.tenant:
        span.set("baton.tenant", trace.tenant)
    if trace.incoming.client_request_id:
        span.set("baton.client_request_id", trace.incoming.client_request_id)


def _is_of_model(trace: RequestTrace) -> bool:
    """True when the request counts in the metrics of its model."""
    return bool(trace.model_name) and trace.incoming.endpoint.generates


def _count(trace: RequestTrace, outcome: str, status: int) -> None:
    name, operation = trace.model_name, trace.incoming.endpoint.name
    wall_s, stages = trace.timer.wall_s, trace.timer.stages
    instruments.E2E_REQUEST_LATENCY.labels(name).observe(wall_s)
    instruments.GEN_AI_REQUEST_DURATION.labels(operation, name).observe(wall_s)
    for stage, seconds in stages.items():
        instruments.GATEWAY_STAGE_SECONDS.labels(name, stage).observe(seconds)
    if status != 200:
        instruments.GATEWAY_FAILED_REQUESTS.labels(name, outcome).inc()
        return
    for reason in outcome.split(","):
        instruments.REQUEST_SUCCESS.labels(name, reason).inc()
    decode_s, num_tokens = stages.get(Stage.DECODE, 0.0), trace.usage.num_output_tokens
    instruments.REQUEST_DECODE_TIME.labels(name).observe(decode_s)
    if num_tokens > 1:
        per_token = instruments.GEN_AI_TIME_PER_OUTPUT_TOKEN.labels(operation, name)
        per_token.observe(decode_s / (num_tokens - 1))
