"""What a request leaves behind for people and dashboards: access line, metrics, span attributes.

No prompt or output text, no API key, and no tenant in a metric's label.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from baton.runtime import logs
from baton.runtime.telemetry import Span, start_span
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from services.gateway import instruments
from services.gateway.request.state import Exchange

_log = logs.get("access")


@contextmanager
def of_request(x: Exchange) -> Iterator[None]:
    """Around a whole request: its line and its metrics, whichever way it ends."""
    instruments.GATEWAY_OPEN_REQUESTS.inc()
    try:
        yield
    except BatonError as error:
        _end(x, error.reason, error.row.http_status)
        if x.model is None:
            of_refusal(error)
        raise
    except BaseException:
        if x.sink.gone_s is not None:
            now_s = x.timer.started_s + x.timer.wall_s
            seconds = instruments.GATEWAY_CANCEL_SECONDS.labels(x.stage)
            seconds.observe(now_s - x.sink.gone_s)
        _end(x, x.sink.gone_reason, 499)
        raise
    else:
        _end(x, x.outcome, 200)
    finally:
        instruments.GATEWAY_OPEN_REQUESTS.dec()


def of_refusal(error: BatonError) -> None:
    """A request was refused before its model was known."""
    status = str(error.row.http_status)
    instruments.GATEWAY_REFUSED_REQUESTS.labels(error.reason, status).inc()


def of_retry(x: Exchange, reason: str) -> None:
    """An attempt brought no token, and another pick follows."""
    instruments.GATEWAY_REPEATED_PICKS.labels(reason).inc()
    _log.info("repeated_pick", request_id=x.request_id, reason=reason)


def of_move(x: Exchange, reason: str) -> None:
    """A stream that had begun goes on elsewhere."""
    instruments.GATEWAY_MOVES.labels(reason).inc()
    _log.info("move", request_id=x.request_id, reason=reason, epoch=x.progress.num_attempts)


def of_queue(x: Exchange, pick_span: Span, asked_s: float, queue_s: float) -> None:
    """The part of the pick, just ended, that was spent in the router's queue: a stage of its own,
    unless the pick is part of a move."""
    start_span("queue", parent=pick_span, request_id=x.request_id, start_s=asked_s).end(
        asked_s + queue_s
    )
    stages = x.timer.stages
    if x.stage == "pick":
        stages["pick"] -= queue_s
        stages["queue"] = stages.get("queue", 0.0) + queue_s
    instruments.REQUEST_QUEUE_TIME.labels(_model_name(x)).observe(queue_s)


def of_first_token(x: Exchange, prefill_s: float, worker_stages: Mapping[str, float]) -> None:
    """The first token arrived. The worker's stages take their share out of `prefill`, which keeps
    what is left: the way to the worker and back."""
    for stage, seconds in worker_stages.items():
        share_s = min(seconds, x.timer.stages["prefill"])
        x.timer.stages["prefill"] -= share_s
        x.timer.stages[stage] = x.timer.stages.get(stage, 0.0) + share_s
    name, ttft_s = _model_name(x), x.timer.wall_s
    instruments.TIME_TO_FIRST_TOKEN.labels(name).observe(ttft_s)
    instruments.GEN_AI_TIME_TO_FIRST_TOKEN.labels(x.arrival.endpoint.name, name).observe(ttft_s)
    instruments.REQUEST_PREFILL_TIME.labels(name).observe(prefill_s)


class TokenGaps:
    """Times between deliveries of one request's tokens."""

    def __init__(self, x: Exchange, clock: Clock) -> None:
        self._histogram = instruments.INTER_TOKEN_LATENCY.labels(_model_name(x))
        self._clock = clock
        self._last_s: float | None = None

    def note(self) -> None:
        """Tokens are being delivered now."""
        now = self._clock.now()
        if self._last_s is not None:
            self._histogram.observe(now - self._last_s)
        self._last_s = now


def _end(x: Exchange, outcome: str, status: int) -> None:
    progress = x.progress
    _log.info(
        "request",
        request_id=x.request_id,
        endpoint=x.arrival.endpoint.name,
        status=status,
        outcome=outcome,
        tenant=x.principal.tenant if x.principal else "",
        model=x.model.name if x.model else "",
        num_prompt_tokens=progress.num_prompt_tokens,
        num_output_tokens=progress.num_output_tokens,
        stages=" ".join(f"{name}={s * 1000:.1f}ms" for name, s in x.timer.stages.items()),
    )
    _set_attributes(x, outcome)
    if x.model is not None:
        _count(x, outcome, status)


def _set_attributes(x: Exchange, outcome: str) -> None:
    span, progress = x.span, x.progress
    span.set("gen_ai.operation.name", x.arrival.endpoint.name)
    span.set("gen_ai.usage.input_tokens", progress.num_prompt_tokens)
    span.set("gen_ai.usage.output_tokens", progress.num_output_tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", progress.num_cached_tokens)
    span.set("baton.outcome", outcome)
    span.set("baton.num_attempts", progress.num_attempts)
    if x.model is not None:
        span.set("gen_ai.request.model", x.model.name)
    if x.principal is not None:
        span.set("baton.tenant", x.principal.tenant)


def _count(x: Exchange, outcome: str, status: int) -> None:
    name, operation, progress = _model_name(x), x.arrival.endpoint.name, x.progress
    instruments.E2E_REQUEST_LATENCY.labels(name).observe(x.timer.wall_s)
    instruments.GEN_AI_REQUEST_DURATION.labels(operation, name).observe(x.timer.wall_s)
    for stage, seconds in x.timer.stages.items():
        instruments.GATEWAY_STAGE_SECONDS.labels(name, stage).observe(seconds)
    if x.request is not None and progress.lease is not None:
        instruments.REQUEST_PARAMS_N.labels(name).observe(x.request.num_choices)
        instruments.REQUEST_PARAMS_MAX_TOKENS.labels(name).observe(progress.max_tokens)
        instruments.REQUEST_PROMPT_TOKENS.labels(name).observe(progress.num_prompt_tokens)
        instruments.REQUEST_GENERATION_TOKENS.labels(name).observe(progress.num_output_tokens)
        usage = instruments.GEN_AI_TOKEN_USAGE
        usage.labels(operation, name, "input").observe(progress.num_prompt_tokens)
        usage.labels(operation, name, "output").observe(progress.num_output_tokens)
        wasted = progress.num_received - progress.num_output_tokens
        instruments.GATEWAY_WASTED_TOKENS.labels(name).inc(wasted)
    if status == 200:
        for reason in outcome.split(","):
            instruments.REQUEST_SUCCESS.labels(name, reason).inc()
        decode_s = x.timer.stages.get("decode", 0.0)
        instruments.REQUEST_DECODE_TIME.labels(name).observe(decode_s)
        if progress.num_output_tokens > 1:
            per_token_s = decode_s / (progress.num_output_tokens - 1)
            instruments.GEN_AI_TIME_PER_OUTPUT_TOKEN.labels(operation, name).observe(per_token_s)
    else:
        instruments.GATEWAY_FAILED_REQUESTS.labels(name, outcome).inc()


def _model_name(x: Exchange) -> str:
    return x.model.name if x.model is not None else ""
