"""Every metric of Baton, declared once: names that vLLM dashboards and autoscalers already know
where there are any, our own `baton_*` elsewhere. docs/telemetry.md explains them.

One block per service. Labels are bounded: model names that exist, reasons, roles; never request
ids or anything that a client chooses freely, and tenants only where their number is bounded.
"""

from prometheus_client import Counter, Gauge, Histogram

__all__ = ["Counter", "Gauge", "Histogram"]

# --- workers (decode and prefill) ---
_MODEL = ("model_name", "engine")

NUM_REQUESTS_RUNNING = Gauge("vllm:num_requests_running", "Sequences in the running batch", _MODEL)
NUM_REQUESTS_WAITING = Gauge("vllm:num_requests_waiting", "Sequences that wait for room", _MODEL)
NUM_REQUESTS_PARKED = Gauge(
    "baton_num_requests_parked", "Sequences that wait for their readers", _MODEL
)
KV_CACHE_USAGE = Gauge("vllm:kv_cache_usage_perc", "Used part of the KV blocks, 0 to 1", _MODEL)
PROMPT_TOKENS = Counter(
    "vllm:prompt_tokens",
    "Prompt tokens of the sequences taken in; both workers of a handoff count them",
    _MODEL,
)
GENERATION_TOKENS = Counter("vllm:generation_tokens", "Output tokens produced", _MODEL)
PREFIX_CACHE_QUERIES = Counter(
    "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", _MODEL
)
PREFIX_CACHE_HITS = Counter(
    "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", _MODEL
)
NUM_PREEMPTIONS = Counter("vllm:num_preemptions", "Sequences that lost their blocks", _MODEL)
DRAFT_TOKENS = Counter(
    "vllm:spec_decode_num_draft_tokens", "Tokens that speculation guessed", _MODEL
)
ACCEPTED_TOKENS = Counter(
    "vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right", _MODEL
)
ITERATION_TOKENS = Histogram(
    "vllm:iteration_tokens_total",
    "Tokens computed in one engine step",
    _MODEL,
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
)
STEP_BATCH_SIZE = Histogram(
    "baton_step_batch_size",
    "Sequences computed together in one engine step",
    _MODEL,
    buckets=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512),
)
KV_BLOCKS = Gauge("baton_kv_blocks", "Blocks in the KV pool", _MODEL)
CACHE_CONFIG_INFO = Gauge(
    "vllm:cache_config_info",
    "Always 1; its labels tell the shape of the KV pool",
    (*_MODEL, "block_size", "num_gpu_blocks"),
)
KV_BLOCKS_USED = Gauge("baton_kv_blocks_used", "KV blocks held by sequences", _MODEL)
KV_BLOCKS_PROMISED = Gauge(
    "baton_kv_blocks_promised", "KV blocks promised to sequences that wait for prefill", _MODEL
)
_CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
CANCEL_SECONDS = Histogram(
    "baton_cancel_seconds",
    "From a cancel's arrival at a worker to its blocks being free there, by what it ended: "
    "grammar, queue, prefill, handoff, decode",
    ("phase",),
    buckets=_CANCEL_BUCKETS,
)
HANDOFF_BLOCKS = Counter(
    "baton_handoff_blocks", "KV blocks of finished transfers, by direction", ("direction",)
)
HANDOFF_BYTES = Counter(
    "baton_handoff_bytes", "KV bytes moved, by direction and transport", ("direction", "transport")
)
HANDOFF_TRANSFERS = Counter(
    "baton_handoff_transfers",
    "Transfers that ended, by direction and outcome: complete, aborted; sent ones also refused, "
    "failed, lost, expired",
    ("direction", "outcome"),
)  # fmt: skip
HANDOFF_BAD_BLOCKS = Counter(
    "baton_handoff_bad_blocks",
    "Block frames that were refused, by cause: checksum, transport; size, payload, layer, heads, "
    "range, count",
    ("cause",),
)
HANDOFF_DROPPED_FRAMES = Counter(
    "baton_handoff_dropped_frames",
    "Frames of no live transfer, by cause: transfer (it is over), epoch, capability, repeat, "
    "unknown",
    ("cause",),
)
HANDOFF_LINKS = Counter(
    "baton_handoff_links", "Links whose hellos agreed on a transport", ("transport",)
)
HANDOFF_FALLBACKS = Counter(
    "baton_handoff_fallbacks",
    "Links whose transport failed, so that the next one to that worker uses grpc", ("transport",),
)  # fmt: skip

DECODE_PARKED_GATEWAYS = Counter(
    "baton_decode_parked_gateways",
    "Gateways whose stream broke, by outcome: resumed, expired",
    ("outcome",),
)

CORE_STALLS = Counter("baton_core_stalls", "Times that the engine core stood still with work")

# --- all services ---
AUDIT_VIOLATIONS = Counter(
    "baton_audit_violations", "Things that must hold and did not, by what was checked", ("check",)
)
SPANS_DROPPED = Counter(
    "baton_spans_dropped",
    "Spans that reached no collector, by cause: queue_full, not_exported",
    ("reason",),
)

# --- quota ---
QUOTA_RESERVATIONS = Counter(
    "baton_quota_reservations",
    "Reservations by outcome: granted; requests, tokens, concurrency, budget (no room), "
    "exceeds_tokens (never fits); unknown_key, revoked_key, used_request_id",
    ("outcome",),
)
QUOTA_RENEWALS = Counter(
    "baton_quota_renewals", "Renewed leases by state: held, refused, lost, unknown_key", ("state",)
)
QUOTA_SETTLES = Counter(
    "baton_quota_settles",
    "Settles by outcome: settled, repeated, unknown (never reserved here, debited in full), "
    "unknown_key (not settled)",
    ("outcome",),
)
QUOTA_LAPSED_LEASES = Counter("baton_quota_lapsed_leases", "Leases that the reaper lapsed")
QUOTA_STORE_FAILURES = Counter(
    "baton_quota_store_failures", "Calls that Redis did not answer or refused", ("call",)
)
QUOTA_REGISTRY_LOADS = Counter(
    "baton_quota_registry_loads",
    "Loads of the registry file, by outcome: loaded, unusable",
    ("outcome",),
)
QUOTA_ARCHIVED_RECORDS = Counter(
    "baton_quota_archived_records",
    "Usage records taken from Redis, by outcome: written, repeated, rejected",
    ("outcome",),
)

QUOTA_TENANT_REQUESTS = Counter(
    "baton_quota_tenant_requests",
    "Reservations by tenant and outcome; tenants beyond BATON_QUOTA_METERED_TENANTS share a label",
    ("tenant", "outcome"),
)
QUOTA_TENANT_TOKENS = Counter(
    "baton_quota_tenant_tokens",
    "Settled tokens by tenant and kind: prompt, cached (a part of prompt), output",
    ("tenant", "kind"),
)

# --- router ---
ROUTER_QUEUE_REQUESTS = Gauge(
    "baton_router_queue_requests", "Requests that wait for a pick", ("model_name",)
)
ROUTER_QUEUE_SECONDS = Histogram(
    "baton_router_queue_seconds",
    "Time from the arrival of a pick to its answer",
    ("model_name",),
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
ROUTER_PICKS = Counter(
    "baton_router_picks",
    "Picks by outcome: pair, local, or the reason of the refusal",
    ("model_name", "outcome"),
)
ROUTER_PROMPT_TOKENS = Counter(
    "baton_router_prompt_tokens", "Prompt tokens of the requests placed", ("model_name",)
)
ROUTER_PREDICTED_CACHED_TOKENS = Counter(
    "baton_router_predicted_cached_tokens",
    "Prompt tokens that the chosen workers are expected to have cached",
    ("model_name",),
)
ROUTER_INDEX_HASHES = Gauge(
    "baton_router_index_hashes", "Prefix hashes in the index, over all workers", ("model_name",)
)
ROUTER_INDEX_LEFT_OUT = Counter(
    "baton_router_index_left_out", "Prefix hashes that did not fit into the index"
)
ROUTER_REPORTS_DROPPED = Counter(
    "baton_router_reports_dropped", "Irregular worker reports, by cause: repeat, gap", ("cause",)
)
ROUTER_READY_WORKERS = Gauge(
    "baton_router_ready_workers", "Workers that may be picked", ("model_name", "role")
)
ROUTER_EJECTIONS = Counter(
    "baton_router_ejections",
    "Workers left out although they answer, by cause: stalled, silent, failing",
    ("model_name", "cause"),
)
ROUTER_QUARANTINED = Counter(
    "baton_router_quarantined_requests", "Requests refused from then on: they killed two cores"
)
ROUTER_QUEUED_PREFILL_TOKENS = Gauge(
    "baton_router_queued_prefill_tokens",
    "Uncached prompt tokens that wait for or are in prefill",
    ("model_name", "role"),
)
ROUTER_QUEUED_PREFILL_SECONDS = Gauge(
    "baton_router_queued_prefill_seconds",
    "Time that the ready workers of a pool need for those tokens at their measured rates",
    ("model_name", "role"),
)

# --- gateway ---
_SERVED = ("model_name",)
_GEN_AI = ("gen_ai_operation_name", "gen_ai_request_model")
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
)  # fmt: skip
_PER_TOKEN_BUCKETS = (
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    163.84, 327.68, 655.36,
)  # fmt: skip
_STAGE_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600,
)  # fmt: skip
_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)

TIME_TO_FIRST_TOKEN = Histogram(
    "vllm:time_to_first_token_seconds",
    "From the request's arrival to its first token",
    _SERVED,
    buckets=_FIRST_TOKEN_BUCKETS,
)
INTER_TOKEN_LATENCY = Histogram(
    "vllm:inter_token_latency_seconds",
    "Between two deliveries of one request's tokens",
    _SERVED,
    buckets=_PER_TOKEN_BUCKETS,
)
E2E_REQUEST_LATENCY = Histogram(
    "vllm:e2e_request_latency_seconds",
    "From the request's arrival to its end",
    _SERVED,
    buckets=_REQUEST_BUCKETS,
)
REQUEST_QUEUE_TIME = Histogram(
    "vllm:request_queue_time_seconds",
    "In the router's queue",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
REQUEST_PREFILL_TIME = Histogram(
    "vllm:request_prefill_time_seconds",
    "From the submit to the first token",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
REQUEST_DECODE_TIME = Histogram(
    "vllm:request_decode_time_seconds",
    "From the first token to the last",
    _SERVED,
    buckets=_STAGE_BUCKETS,
)
GATEWAY_STAGE_SECONDS = Histogram(
    "baton_gateway_stage_seconds",
    "Time of one stage of a request; the stages of a request add up to its wall time",
    ("model_name", "stage"),
    buckets=_STAGE_BUCKETS,
)
REQUEST_PROMPT_TOKENS = Histogram(
    "vllm:request_prompt_tokens", "Prompt tokens of a request", _SERVED, buckets=_TOKEN_BUCKETS
)
REQUEST_GENERATION_TOKENS = Histogram(
    "vllm:request_generation_tokens",
    "Output tokens of a request, all choices",
    _SERVED,
    buckets=_TOKEN_BUCKETS,
)
REQUEST_PARAMS_MAX_TOKENS = Histogram(
    "vllm:request_params_max_tokens",
    "Most output tokens of one choice",
    _SERVED,
    buckets=_TOKEN_BUCKETS,
)
REQUEST_PARAMS_N = Histogram(
    "vllm:request_params_n", "Choices of a request", _SERVED, buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
REQUEST_SUCCESS = Counter(
    "vllm:request_success", "Choices that ended well, by reason", ("model_name", "finished_reason")
)
GEN_AI_REQUEST_DURATION = Histogram(
    "gen_ai_server_request_duration_seconds",
    "From the request's arrival to its end",
    _GEN_AI,
    buckets=_REQUEST_BUCKETS,
)
GEN_AI_TIME_TO_FIRST_TOKEN = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "From the request's arrival to its first token",
    _GEN_AI,
    buckets=_FIRST_TOKEN_BUCKETS,
)
GEN_AI_TIME_PER_OUTPUT_TOKEN = Histogram(
    "gen_ai_server_time_per_output_token_seconds",
    "Mean time of an output token after the first",
    _GEN_AI,
    buckets=_PER_TOKEN_BUCKETS,
)
GEN_AI_TOKEN_USAGE = Histogram(
    "gen_ai_client_token_usage",
    "Tokens of a request, by type",
    (*_GEN_AI, "gen_ai_token_type"),
    buckets=_TOKEN_BUCKETS,
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
GATEWAY_LONE_PICKS = Counter(
    "baton_gateway_lone_picks",
    "Picks that the gateway made from the routers' last view, because none of them answered",
)
GATEWAY_MOVES = Counter(
    "baton_gateway_moves",
    "Streams that had begun and moved to another worker, by reason",
    ("reason",),
)
GATEWAY_MOVE_SECONDS = Histogram(
    "baton_gateway_move_seconds",
    "From the loss of an attempt to the next token of its stream",
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
GATEWAY_WASTED_TOKENS = Counter(
    "baton_gateway_wasted_tokens", "Tokens that came after a request had ended", _SERVED
)
GATEWAY_CANCEL_SECONDS = Histogram(
    "baton_gateway_cancel_seconds",
    "From a client's leaving to its request being given up: the worker has acknowledged, quota is "
    "settled; by the stage that it ended",
    ("phase",),
    buckets=_CANCEL_BUCKETS,
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
    "Entries of Step frames that were not taken, by cause: over (its request is), repeat, gap",
    ("cause",),
)

# --- tokenizer ---
TOKENIZER_STAGE_SECONDS = Histogram(
    "baton_tokenizer_stage_seconds",
    "Time of one stage of encoding a prompt: template, encode, hash",
    ("model_name", "stage"),
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)
TOKENIZER_FAILED_PROMPTS = Counter(
    "baton_tokenizer_failed_prompts", "Prompts that were not encoded, by reason", ("reason",)
)

# --- edge (Envoy's control plane) ---
EDGE_GATEWAYS = Gauge(
    "baton_edge_gateways",
    "Gateways that Envoys are told of, by state: ready, unready, draining",
    ("state",),
)
EDGE_ENVOYS = Gauge("baton_edge_envoys", "Envoys on an open stream")
EDGE_REFUSED_CONFIGS = Counter(
    "baton_edge_refused_configs", "Configurations that an Envoy has refused", ("kind",)
)
