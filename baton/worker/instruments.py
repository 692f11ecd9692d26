"""Metrics of the decode and prefill workers."""

from prometheus_client import Counter, Gauge, Histogram

from baton.handoff.outcomes import BadBlocksCause, DropCause, TransferOutcome
from baton.runtime.instruments import CANCEL_BUCKETS, Series

_MODEL = ("model_name", "engine")
NUM_REQUESTS_RUNNING = Gauge("vllm:num_requests_running", "Sequences in the running batch", _MODEL)
NUM_REQUESTS_WAITING = Gauge("vllm:num_requests_waiting", "Sequences that wait for room", _MODEL)
NUM_REQUESTS_PARKED = Gauge(
    "baton_num_requests_parked", "Sequences that wait for credit, which their readers give", _MODEL
)
KV_CACHE_USAGE = Gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", _MODEL)
PROMPT_TOKENS = Counter(
    "vllm:prompt_tokens",
    "Prompt tokens of admitted sequences; both workers of a handoff count them",
    _MODEL,
)
GENERATION_TOKENS = Counter("vllm:generation_tokens", "Output tokens produced", _MODEL)
PREFIX_CACHE_QUERIES = Counter(
    "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", _MODEL
)
PREFIX_CACHE_HITS = Counter(
    "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", _MODEL
)
NUM_PREEMPTIONS = Counter("vllm:num_preemptions", "Preemptions: a sequence lost its blocks", _MODEL)
DRAFT_TOKENS = Counter(
    "vllm:spec_decode_num_draft_tokens", "Draft tokens of speculative decoding", _MODEL
)
ACCEPTED_TOKENS = Counter(
    "vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted", _MODEL
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
# Of workers with vLLM alone, which counts them.
WAITING_BY_REASON = Gauge(
    "vllm:num_requests_waiting_by_reason",
    "Requests that wait, by reason: capacity (for blocks or a place), deferred (for KV from a "
    "prefill worker)",
    (*_MODEL, "reason"),
)
KV_FETCHES_BY_STAGE = Gauge(
    "vllm:num_requests_kv_fetch_by_stage",
    "Requests whose KV comes from a prefill worker, by stage: waiting_to_start, in_progress, "
    "completed_waiting",
    (*_MODEL, "stage"),
)
EXTERNAL_CACHE_QUERIES = Counter(
    "vllm:external_prefix_cache_queries", "Prompt tokens that were not cached here", _MODEL
)
EXTERNAL_CACHE_HITS = Counter(
    "vllm:external_prefix_cache_hits", "Those that a prefill worker was asked for", _MODEL
)
PROMPT_TOKENS_BY_SOURCE = Counter(
    "vllm:prompt_tokens_by_source",
    "Prompt tokens of sequences that have begun their answer, by source: local_compute, "
    "local_cache_hit, external_kv_transfer (from a prefill worker)",
    (*_MODEL, "source"),
)
PROMPT_TOKENS_CACHED = Counter(
    "vllm:prompt_tokens_cached", "Those that were not computed here", _MODEL
)
PREFILL_COMPUTED_TOKENS = Histogram(
    "vllm:request_prefill_kv_computed_tokens",
    "Tokens of a prompt that were computed here",
    _MODEL,
    buckets=(1, 10, 100, 1_000, 10_000, 100_000),
)
REQUEST_PREEMPTIONS = Histogram(
    "vllm:request_num_preemptions",
    "Preemptions of an answer until its end",
    _MODEL,
    buckets=(0, 1, 2, 5, 10, 20),
)
LORA_REQUESTS = Gauge(
    "vllm:lora_requests_info",
    "The time of the last change; its labels tell the adapters that are in use and waited for",
    ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
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
KV_BLOCKS_CACHED = Gauge(
    "baton_kv_blocks_cached", "KV blocks in the prefix cache, used or idle", _MODEL
)
STAGING_ROWS = Gauge(
    "baton_staging_rows", "Rows of the staging ring; 0 = blocks are handed over in place", _MODEL
)
STAGING_ROWS_USED = Gauge(
    "baton_staging_rows_used", "Rows of the staging ring that sequences have", _MODEL
)
ENGINE_UPTIME = Gauge(
    "baton_engine_uptime_seconds",
    "Time since the model was loaded; what is not busy is idle",
    _MODEL,
)
ENGINE_BUSY = Gauge("baton_engine_busy_seconds", "Time of all engine steps", _MODEL)
ENGINE_UNBILLED = Gauge(
    "baton_engine_unbilled_seconds",
    "Busy time that is on no bill: of requests that were given up meanwhile, and of probes",
    _MODEL,
)
CANCEL_SECONDS = Histogram(
    "baton_cancel_seconds",
    "Time from a cancel's arrival at a worker until its blocks are free there, by phase: "
    "grammar, queue, prefill, handoff, decode",
    ("phase",),
    buckets=CANCEL_BUCKETS,
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
DECODE_DISCONNECTED_GATEWAYS = Counter(
    "baton_decode_parked_gateways",
    "Gateways whose stream broke, by outcome: resumed, expired",
    ("outcome",),
)
CORE_STALLS = Counter(
    "baton_core_stalls", "Stalls of the engine core: it had work and made no progress"
)
CORE_STARVED_SECONDS = Counter(
    "baton_core_starved_seconds", "Time in which the engine core stood still for want of a CPU"
)

_TRANSPORTS = ("shm", "nixl", "grpc")
_DROPPED = [(cause,) for cause in DropCause if cause != DropCause.REPEAT]
_BY_TRANSPORT = [(transport,) for transport in _TRANSPORTS]

DECODE_SERIES: Series = {
    HANDOFF_BLOCKS: [("received",)],
    HANDOFF_BYTES: [("received", transport) for transport in _TRANSPORTS],
    HANDOFF_TRANSFERS: [
        ("received", TransferOutcome.COMPLETE),
        ("received", TransferOutcome.ABORTED),
    ],
    HANDOFF_BAD_BLOCKS: [(cause,) for cause in BadBlocksCause],
    HANDOFF_DROPPED_FRAMES: _DROPPED,
    HANDOFF_LINKS: _BY_TRANSPORT,
    HANDOFF_FALLBACKS: _BY_TRANSPORT,
    DECODE_DISCONNECTED_GATEWAYS: [("resumed",), ("expired",)],
}
PREFILL_SERIES: Series = {
    HANDOFF_BLOCKS: [("sent",)],
    HANDOFF_BYTES: [("sent", transport) for transport in _TRANSPORTS],
    HANDOFF_TRANSFERS: [("sent", outcome) for outcome in TransferOutcome],
    HANDOFF_DROPPED_FRAMES: [(cause,) for cause in DropCause],
    HANDOFF_LINKS: _BY_TRANSPORT,
    DECODE_DISCONNECTED_GATEWAYS: [("resumed",), ("expired",)],
}
