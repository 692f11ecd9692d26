"""Metrics of the gateway."""

from enum import StrEnum

from prometheus_client import Counter, Gauge, Histogram

from baton.runtime.instruments import CANCEL_BUCKETS, Series, TallyHistogram
from baton.wire.failures import REASONS


class StreamOutcome(StrEnum):
    """The end of the time in which a broken stream to a decode worker may be resumed."""

    RESUMED = "resumed"
    GIVEN_UP = "given_up"


class DropCause(StrEnum):
    """The reason for which an entry of a Step frame is dropped."""

    OVER = "over"
    REPEAT = "repeat"
    GAP = "gap"


class Metering:
    """How much these metrics tell apart. Each model is some 400 lines of the page.

    Prometheus keeps a label for good, so the first `most_models` models that this process serves
    have their own and all others share one.
    """

    OTHERS = "_other"

    def __init__(self) -> None:
        self.most_models = 50
        # The metrics under OpenTelemetry's names, too.
        self.gen_ai = True
        self._named: set[str] = set()

    def label(self, model_name: str) -> str:
        """The label of a model that exists."""
        if model_name not in self._named:
            if len(self._named) >= self.most_models:
                return self.OTHERS
            self._named.add(model_name)
        return model_name


METERING = Metering()

_SERVED = ("model_name",)
_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    60, 120,
)  # fmt: skip
_PER_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    163.84, 327.68, 655.36,
)  # fmt: skip
_STAGE_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600,
)  # fmt: skip
_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
TIME_TO_FIRST_TOKEN = TallyHistogram(
    "vllm:time_to_first_token_seconds",
    "Time from the request's arrival to its first token",
    _SERVED,
    buckets=_FIRST_TOKEN_BUCKETS,
)
INTER_TOKEN_LATENCY = TallyHistogram(
    "vllm:inter_token_latency_seconds",
    "Time between two deliveries of one request's tokens",
    _SERVED,
    buckets=_PER_TOKEN_BUCKETS,
)

E2E_REQUEST_LATENCY = TallyHistogram(
    "vllm:e2e_request_latency_seconds",
    "Time from the request's arrival to its end",
    _SERVED,
    buckets=_REQUEST_BUCKETS,
)
REQUEST_QUEUE_TIME = TallyHistogram(
    "vllm:request_queue_time_seconds",
    "Time in the router's queue",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
REQUEST_PREFILL_TIME = TallyHistogram(
    "vllm:request_prefill_time_seconds",
    "Time from the submit to the first token",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
REQUEST_DECODE_TIME = TallyHistogram(
    "vllm:request_decode_time_seconds",
    "Time from the first token to the last",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
GATEWAY_STAGE_SECONDS = TallyHistogram(
    "baton_gateway_stage_seconds",
    "Time of one stage of a request; the stages of a request add up to its wall time",
    ("model_name", "stage"),
    buckets=_STAGE_BUCKETS,
)
REQUEST_PROMPT_TOKENS = TallyHistogram(
    "vllm:request_prompt_tokens", "Prompt tokens of a request", _SERVED, buckets=_TOKEN_BUCKETS
)
REQUEST_GENERATION_TOKENS = TallyHistogram(
    "vllm:request_generation_tokens",
    "Output tokens of a request, all choices",
    _SERVED,
    buckets=_TOKEN_BUCKETS,
)
REQUEST_PARAMS_MAX_TOKENS = TallyHistogram(
    "vllm:request_params_max_tokens",
    "Limit on the output tokens of one choice",
    _SERVED,
    buckets=_TOKEN_BUCKETS,
)
REQUEST_PARAMS_N = TallyHistogram(
    "vllm:request_params_n", "Choices of a request", _SERVED, buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
REQUEST_SUCCESS = Counter(
    "vllm:request_success",
    "Choices that finished, by reason",
    ("model_name", "finished_reason"),
)
GEN_AI_REQUEST_DURATION = TallyHistogram(
    "gen_ai_server_request_duration_seconds",
    "Time from the request's arrival to its end; error_type is empty where it ended well",
    (*_GEN_AI, "error_type"),
    buckets=_REQUEST_BUCKETS,
)
GEN_AI_TIME_TO_FIRST_TOKEN = TallyHistogram(
    "gen_ai_server_time_to_first_token_seconds",
    "Time from the request's arrival to its first token",
    _GEN_AI,
    buckets=_FIRST_TOKEN_BUCKETS,
)
GEN_AI_TIME_PER_OUTPUT_TOKEN = TallyHistogram(
    "gen_ai_server_time_per_output_token_seconds",
    "Mean time of an output token after the first",
    _GEN_AI,
    buckets=_PER_TOKEN_BUCKETS,
)
GATEWAY_OPEN_REQUESTS = Gauge("baton_gateway_open_requests", "Requests in the pipeline")
GATEWAY_FAILED_REQUESTS = Counter(
    "baton_gateway_failed_requests",
    "Requests that failed once their model was known, by reason",
    ("model_name", "reason"),
)
GATEWAY_REFUSED_REQUESTS = Counter(
    "baton_gateway_refused_requests",
    "Requests, on any path, that were refused before their model was known, by reason and HTTP "
    "status",
    ("reason", "status"),
)
GATEWAY_REPEATED_PICKS = Counter(
    "baton_gateway_repeated_picks",
    "Picks repeated because an attempt brought no token, by reason",
    ("reason",),
)
GATEWAY_ISSUER_FETCHES = Counter(
    "baton_gateway_issuer_fetches",
    "Fetches of the token issuer's keys: ok, failed",
    ("outcome",),
)
GATEWAY_SAFETY_CHECKS = Counter(
    "baton_gateway_safety_checks",
    "Checks of the safety hook, by part (prompt, answer) and outcome: passed, refused, failed",
    ("part", "outcome"),
)
GATEWAY_FALLBACK_PICKS = Counter(
    "baton_gateway_lone_picks",
    "Picks that the gateway made from the routers' last view, because none of them answered",
)
GATEWAY_PICK_REGRET = TallyHistogram(
    "baton_gateway_pick_regret_seconds",
    "Time by which a pick cost more than the best other choice was predicted to; 0 = none was "
    "better",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
GATEWAY_PICK_ERROR = TallyHistogram(
    "baton_gateway_pick_error_ratio",
    "Measured over predicted time of a pick, by part: wait, prefill, handoff, steps, first_token, "
    "token_gap",
    ("model_name", "part"),
    buckets=(0.1, 0.2, 0.5, 0.8, 0.9, 1.1, 1.25, 2, 5, 10),
)
GATEWAY_MIGRATIONS = Counter(
    "baton_gateway_moves",
    "Migrations of streams that had begun to another worker, by reason",
    ("reason",),
)
GATEWAY_MIGRATION_SECONDS = Histogram(
    "baton_gateway_move_seconds",
    "Time from the loss of an attempt to the next token of its stream",
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
GATEWAY_WASTED_TOKENS = Counter(
    "baton_gateway_wasted_tokens", "Tokens that came after a request had ended", _SERVED
)
GATEWAY_CANCEL_SECONDS = Histogram(
    "baton_gateway_cancel_seconds",
    "Time from a client's disconnect until its request is given up (the worker has acknowledged, "
    "quota is settled), by the stage that it ended",
    ("phase",),
    buckets=CANCEL_BUCKETS,
)
GATEWAY_QUOTA_AWAY = Gauge(
    "baton_gateway_quota_away",
    "1 while quota does not answer, and this gateway's own limits hold for soft tenants",
)
GATEWAY_QUOTA_RECONNECTS = Counter(
    "baton_gateway_quota_reconnects_total",
    "Connections to quota that were left because a call was silent: a replica may hang",
)
GATEWAY_OUTBOX_RECORDS = Gauge(
    "baton_gateway_outbox_records", "Usage records that wait for the quota service"
)
GATEWAY_LOST_STREAMS = Counter(
    "baton_gateway_lost_streams",
    "Broken streams to decode workers, by outcome: resumed, given_up",
    ("outcome",),
)
GATEWAY_DROPPED_ENTRIES = Counter(
    "baton_gateway_dropped_entries",
    "Entries of Step frames that were dropped, by cause: over (the request has ended), repeat, gap",
    ("cause",),
)
GATEWAY_STORE_FAILURES = Counter(
    "baton_gateway_store_failures",
    "Failed calls to the store of responses, by script or command",
    ("call",),
)

# The reasons of failures after which another attempt may follow.
_RETRIED = [
    (reason,) for reason in (
        "no_room", "prefill_refused", "worker_lost", "draining", "unavailable", "handoff_failed",
    )
]  # fmt: skip

KNOWN_SERIES: Series = {
    GATEWAY_REFUSED_REQUESTS: [(reason, str(row.http_status)) for reason, row in REASONS.items()],
    GATEWAY_REPEATED_PICKS: _RETRIED,
    GATEWAY_MIGRATIONS: _RETRIED,
    GATEWAY_LOST_STREAMS: [(outcome,) for outcome in StreamOutcome],
    GATEWAY_DROPPED_ENTRIES: [(cause,) for cause in DropCause],
}
