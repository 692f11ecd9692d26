"""The access line, the metrics, the stages and the span attributes of a request.

No prompt or output text, no API key, and no tenant in a metric's label.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from baton.runtime import logs
from baton.runtime.telemetry import AttributeValue, Span, kept_root, start_span
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from services.gateway import instruments
from services.gateway.kept_traces import KeptTraces
from services.gateway.request.incoming import Repeated
from services.gateway.request.trace import PROVIDER, RequestTrace, Stage

_log = logs.get("access")


# A server's span is an error from this HTTP status on; what is below is the client's doing.
_FIRST_FAILURE = 500


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a request. `outcome`: the reason of its failure, or those of its choices' ends."""

    outcome: str
    status: int

    @property
    def error(self) -> str:
        """The reason of its failure; empty when there was none."""
        return "" if self.status == 200 else self.outcome


@contextmanager
def of_request(trace: RequestTrace, kept: KeptTraces) -> Iterator[None]:
    """Report a whole request, around which this stands: its line, its metrics, and its span, which
    ends with it; at any end."""
    ending = Ending("internal", 500)
    instruments.GATEWAY_OPEN_REQUESTS.inc()
    try:
        yield
    except BatonError as error:
        ending = Ending(error.reason, error.row.http_status)
        _end(trace, ending)
        if not _is_of_model(trace):
            of_refusal(error)
        raise
    except Repeated:
        ending = Ending("repeated", 200)
        _end(trace, ending)
        raise
    except BaseException:
        if trace.client.gone_s is not None:
            now_s = trace.timer.started_s + trace.timer.wall_s
            seconds = instruments.GATEWAY_CANCEL_SECONDS.labels(trace.stage)
            seconds.observe(now_s - trace.client.gone_s)
        ending = Ending(trace.client.gone_reason, 499)
        _end(trace, ending)
        raise
    else:
        ending = Ending(trace.usage.finish_reasons, 200)
        _end(trace, ending)
    finally:
        instruments.GATEWAY_OPEN_REQUESTS.dec()
        _end_span(trace, ending, kept)


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
    instruments.REQUEST_QUEUE_TIME.labels(trace.metered_name).observe(queue_s)


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
        # The epoch and the trace context of the attempt that ended last.
        self._lost = (0, "")
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
        self._trace.attempts.take()
        if self.migration is not None:
            self._trace.timer.mark(Stage.MIGRATION)
            instruments.GATEWAY_MIGRATION_SECONDS.observe(self._clock.now() - self._lost_s)
            self._trace.attempts.end_move()
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

    def leave(self, failure: BaseException | None, refused_by: str) -> None:
        """Note how an attempt has ended; `refused_by`: the worker that had no room, if that is
        why."""
        attempts = self._trace.attempts
        if refused_by:
            self._trace.usage.num_refusals += 1
            attempts.refuse(refused_by)
        else:
            self._lost = self._trace.usage.num_submits, attempts.end(failure)

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
        self.migration = trace.attempts.begin_move(reason, worker_id, self._lost)
        instruments.GATEWAY_MIGRATIONS.labels(reason).inc()
        epoch = trace.usage.num_submits
        _log.info("move", request_id=trace.request_id, reason=reason, epoch=epoch)
        return True

    def end(self) -> None:
        """Note that the request is over, however it ended."""
        self._trace.attempts.close()
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
    name, ttft_s = trace.metered_name, trace.timer.wall_s
    trace.first_token_s = ttft_s
    exemplar = _exemplar(trace)
    instruments.TIME_TO_FIRST_TOKEN.labels(name).observe(ttft_s, exemplar)
    if instruments.METERING.gen_ai:
        tally = instruments.GEN_AI_TIME_TO_FIRST_TOKEN.labels(*trace.gen_ai_labels)
        tally.observe(ttft_s, exemplar)
    instruments.REQUEST_PREFILL_TIME.labels(name).observe(prefill_s)


def _count_tokens(trace: RequestTrace, num_choices: int, max_tokens: int) -> None:
    name, usage = trace.metered_name, trace.usage
    instruments.REQUEST_PARAMS_N.labels(name).observe(num_choices)
    instruments.REQUEST_PARAMS_MAX_TOKENS.labels(name).observe(max_tokens)
    instruments.REQUEST_PROMPT_TOKENS.labels(name).observe(usage.num_prompt_tokens)
    instruments.REQUEST_GENERATION_TOKENS.labels(name).observe(usage.num_output_tokens)
    instruments.GATEWAY_WASTED_TOKENS.labels(name).inc(usage.num_wasted_tokens)


def _end(trace: RequestTrace, ending: Ending) -> None:
    usage, stages = trace.usage, trace.timer.stages
    _log.info(
        "request",
        request_id=trace.request_id,
        client_request_id=trace.incoming.client_request_id,
        trace_id=trace.span.trace_id,
        endpoint=trace.incoming.endpoint.name,
        status=ending.status,
        outcome=ending.outcome,
        tenant=trace.tenant,
        model=trace.model_name,
        num_prompt_tokens=usage.num_prompt_tokens,
        num_output_tokens=usage.num_output_tokens,
        stages=_stages_text(stages),
    )
    if _is_of_model(trace):
        _count(trace, ending)


def _stages_text(stages: Mapping[str, float]) -> str:
    return " ".join([f"{name}={s * 1000:.1f}ms" for name, s in stages.items()])


def _end_span(trace: RequestTrace, ending: Ending, kept: KeptTraces) -> None:
    """End the span. A trace that was not sampled gets it now, if it is to be kept."""
    span = trace.span
    if not span.is_recorded:
        first_token_s = trace.timer.wall_s if trace.first_token_s is None else trace.first_token_s
        has_moved = Stage.MIGRATION in trace.timer.stages
        reason = kept.reason(status=ending.status, has_moved=has_moved, first_token_s=first_token_s)
        if not reason:
            return
        started_s, name = trace.timer.started_s, trace.incoming.endpoint.operation
        span = kept_root(name, trace.span, request_id=trace.request_id, start_s=started_s)
        span.set("baton.kept", reason)
    _set_attributes(span, trace, ending)
    if ending.status >= _FIRST_FAILURE:
        span.fail(ending.error)
    elif ending.error:
        span.refuse(ending.error)
    span.end()


def _set_attributes(span: Span, trace: RequestTrace, ending: Ending) -> None:
    """Name the span after its work, and say of it what the lists of tracing backends show."""
    usage, incoming = trace.usage, trace.incoming
    values: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": incoming.endpoint.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": trace.model_name,
        "gen_ai.request.stream": trace.is_streamed or None,
        "gen_ai.response.time_to_first_chunk": trace.first_token_s,
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.output_tokens": usage.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.num_reasoning_tokens or None,
        "http.response.status_code": ending.status,
        "baton.outcome": ending.outcome,
        "baton.num_attempts": usage.num_attempts,
        "baton.workers": trace.attempts.workers,
        "baton.stages": _stages_text(trace.timer.stages),
        "baton.tenant": trace.tenant,
        "baton.client_request_id": incoming.client_request_id,
    }
    if not ending.error and usage.choices:
        values["gen_ai.response.finish_reasons"] = ending.outcome.split(",")
    if incoming.route:
        values |= {"http.request.method": "POST", "http.route": incoming.route}
    for name, value in values.items():
        if value not in (None, "", []):
            span.set(name, value)
    if trace.model_name:
        span.rename(f"{incoming.endpoint.operation} {trace.model_name}")


def _exemplar(trace: RequestTrace) -> dict[str, str] | None:
    """The trace that stands for an observation of this request, where it has one."""
    if not trace.span.is_recorded:
        return None
    span = trace.span
    return {"trace_id": span.trace_id, "span_id": span.span_id, "request_id": trace.request_id}


def _is_of_model(trace: RequestTrace) -> bool:
    """True when the request counts in the metrics of its model."""
    return bool(trace.model_name) and trace.incoming.endpoint.generates


def _count(trace: RequestTrace, ending: Ending) -> None:
    name, wall_s, stages = trace.metered_name, trace.timer.wall_s, trace.timer.stages
    exemplar = _exemplar(trace)
    instruments.E2E_REQUEST_LATENCY.labels(name).observe(wall_s, exemplar)
    if instruments.METERING.gen_ai:
        tally = instruments.GEN_AI_REQUEST_DURATION.labels(*trace.gen_ai_labels, ending.error)
        tally.observe(wall_s, exemplar)
    for stage, seconds in stages.items():
        instruments.GATEWAY_STAGE_SECONDS.labels(name, stage).observe(seconds)
    if ending.error:
        instruments.GATEWAY_FAILED_REQUESTS.labels(name, ending.error).inc()
        return
    for reason in ending.outcome.split(","):
        instruments.REQUEST_SUCCESS.labels(name, reason).inc()
    decode_s, num_tokens = stages.get(Stage.DECODE, 0.0), trace.usage.num_output_tokens
    instruments.REQUEST_DECODE_TIME.labels(name).observe(decode_s)
    if num_tokens > 1 and instruments.METERING.gen_ai:
        per_token = instruments.GEN_AI_TIME_PER_OUTPUT_TOKEN.labels(*trace.gen_ai_labels)
        per_token.observe(decode_s / (num_tokens - 1))
