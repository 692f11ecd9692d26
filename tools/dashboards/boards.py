"""The four dashboards. Every metric that they name is in an `instruments.py`."""

from tools.dashboards.panels import (
    OF_MODEL,
    Dashboard,
    Panel,
    mean,
    quantile,
    quantiles,
    rate,
    since_start,
)

FLEET = Dashboard(
    "baton-fleet",
    "Baton / Fleet",
    "Is it up, is it fast, is it full: what users see first, then what the pools do.",
    {
        "What users see": [
            Panel(
                "Time to first token",
                "From a request's arrival at the gateway to its first token.",
                quantiles("vllm:time_to_first_token_seconds"),
                "s",
                limit=5,
            ),
            Panel(
                "Time between tokens",
                "Between two deliveries of one request's tokens.",
                quantiles("vllm:inter_token_latency_seconds"),
                "s",
            ),
            Panel(
                "Requests that ended",
                "By how they ended. Failures carry their reason; refused ones had no model yet.",
                {
                    rate("vllm:request_success_total", "finished_reason"): "{{finished_reason}}",
                    rate("baton_gateway_failed_requests_total", "reason"): "failed: {{reason}}",
                    rate("baton_gateway_refused_requests_total", "reason", labels="") + " > 0": (
                        "refused: {{reason}}"
                    ),
                },
                "reqps",
                is_stacked=True,
            ),
        ],
        "Work": [
            Panel(
                "Tokens a second",
                "Prompt tokens of the requests placed, cached or not, and output tokens produced.",
                {
                    rate("baton_router_prompt_tokens_total"): "prompt",
                    rate("vllm:generation_tokens_total"): "output",
                },
                "short",
            ),
            Panel(
                "Open requests",
                "In the gateways, waiting in the routers' queues, and running in batches.",
                {
                    "sum(baton_gateway_open_requests)": "in gateways",
                    f"sum(baton_router_queue_requests{{{OF_MODEL}}})": "queued in the router",
                    f"sum(vllm:num_requests_running{{{OF_MODEL}}})": "running",
                    f"sum(baton_num_requests_parked{{{OF_MODEL}}})": "parked: their readers stall",
                },
                decimals=0,
            ),
            Panel(
                "Ready workers",
                "As the routers see them: registered, reporting, neither draining nor ejected.",
                {
                    f"max by (model_name, role) (baton_router_ready_workers{{{OF_MODEL}}})": (
                        "{{model_name}} {{role}}"
                    )
                },
                kind="stat",
                decimals=0,
                colours={0: "red", 1: "green"},
                nothing="none has registered",
            ),
        ],
        "What went wrong and was healed": [
            Panel(
                "Streams that moved",
                "Since the gateways started, to another worker in mid-stream, by the reason of the "
                "loss. Clients saw a pause.",
                {since_start("baton_gateway_moves_total", "reason"): "{{reason}}"},
                decimals=0,
            ),
            Panel(
                "Pause of a moved stream",
                "From the loss to the next token.",
                quantiles("baton_gateway_move_seconds", labels=""),
                "s",
            ),
            Panel(
                "Workers left out",
                "Since the routers started, by why: stalled, silent, failing. And requests refused "
                "since they killed workers.",
                {
                    # Every router counts all that it sees.
                    f"max by (cause) (baton_router_ejections_total{{{OF_MODEL}}})": "{{cause}}",
                    "max(baton_router_quarantined_requests_total)": "requests quarantined",
                    since_start("baton_core_stalls_total"): "cores that stood still",
                },
                decimals=0,
            ),
            Panel(
                "Violations",
                "Invariants that were violated. Each is a log line with an id.",
                {"sum by (check) (baton_audit_violations_total)": "{{check}}"},
                kind="stat",
                decimals=0,
                colours={1: "red"},
                nothing="none",
            ),
        ],
    },
)

STAGES = Dashboard(
    "baton-stages",
    "Baton / Request stages",
    "Where the time of a request goes. The stages add up to the wall time.",
    {
        "All of it": [
            Panel(
                "Mean request, by stage",
                "The stack's height is the mean wall time of a request.",
                {
                    rate("baton_gateway_stage_seconds_sum", "stage")
                    + " / on () group_left "
                    + rate("vllm:e2e_request_latency_seconds_count"): "{{stage}}"
                },
                "s",
                is_stacked=True,
            ),
            Panel(
                "95th percentile of each stage",
                "They do not add up: the slow ones of one stage are not those of another.",
                {quantile(0.95, "baton_gateway_stage_seconds", "stage"): "{{stage}}"},
                "s",
            ),
        ],
        "Before the first token": [
            Panel(
                "In the router's queue",
                "From the arrival of a pick to its answer.",
                quantiles("baton_router_queue_seconds"),
                "s",
            ),
            Panel(
                "Submit to first token",
                "Promise, queue and compute of prefill, and the way there and back.",
                quantiles("vllm:request_prefill_time_seconds"),
                "s",
            ),
            Panel(
                "Tokenizer",
                "95th percentile of template, encoding and hashing.",
                {quantile(0.95, "baton_tokenizer_stage_seconds", "stage"): "{{stage}}"},
                "s",
            ),
        ],
        "Were the picks right": [
            Panel(
                "Measured over predicted, by part",
                "Median. 1 = the router knew; 2 = it took twice as long as the router thought. The "
                "parts are those of the score: wait and prefill of the prompt, handoff, steps.",
                {quantile(0.5, "baton_gateway_pick_error_ratio", "part"): "{{part}}"},
            ),
            Panel(
                "Regret",
                "By how much picks cost more than the best other choice was predicted to. 0 = none "
                "was better. The mean is what a router that knew could save at most.",
                {
                    mean("baton_gateway_pick_regret_seconds"): "mean",
                    quantile(0.95, "baton_gateway_pick_regret_seconds"): "p95",
                },
                "s",
            ),
        ],
        "After it": [
            Panel(
                "First token to last",
                "Decoding.",
                quantiles("vllm:request_decode_time_seconds"),
                "s",
            ),
            Panel(
                "Whole requests",
                "From arrival to end.",
                quantiles("vllm:e2e_request_latency_seconds"),
                "s",
            ),
            Panel(
                "Cancel to blocks free",
                "95th percentile on the workers, by what the cancel ended.",
                {quantile(0.95, "baton_cancel_seconds", "phase", labels=""): "{{phase}}"},
                "s",
            ),
        ],
    },
)

TENANTS = Dashboard(
    "baton-tenants",
    "Baton / Tenants",
    "Who uses what. A bounded number of tenants by name; the others share a label.",
    {
        "Use": [
            Panel(
                "Tokens a second, by tenant",
                "Settled prompt and output tokens.",
                {
                    "topk(12, "
                    + rate("baton_quota_tenant_tokens_total", "tenant", labels='kind!="cached"')
                    + " > 0)": "{{tenant}}"
                },
                "short",
                is_stacked=True,
            ),
            Panel(
                "Prompt tokens served from caches",
                "Share of each tenant's prompt tokens that came from the prefix cache.",
                {
                    rate("baton_quota_tenant_tokens_total", "tenant", labels='kind="cached"')
                    + " / "
                    + rate("baton_quota_tenant_tokens_total", "tenant", labels='kind="prompt"'): (
                        "{{tenant}}"
                    )
                },
                "percentunit",
                most=1,
            ),
        ],
        "Limits": [
            Panel(
                "Reservations",
                "Granted requests of each tenant.",
                {
                    "topk(12, "
                    + rate(
                        "baton_quota_tenant_requests_total", "tenant", labels='outcome="granted"'
                    )
                    + " > 0)": "{{tenant}}"
                },
                "reqps",
            ),
            Panel(
                "Refused, by limit",
                "What had no room: requests, tokens, concurrency or budget.",
                {
                    rate(
                        "baton_quota_tenant_requests_total",
                        "tenant",
                        "outcome",
                        labels='outcome!="granted"',
                    ): "{{tenant}}: {{outcome}}"
                },
                "reqps",
            ),
        ],
        "Bookkeeping": [
            Panel(
                "Leases that lapsed",
                "Since the service started: their gateway died or lost its way to it.",
                {
                    since_start("baton_quota_lapsed_leases_total"): "lapsed",
                    since_start("baton_quota_renewals_total", "state", labels='state!="held"'): (
                        "renewal {{state}}"
                    ),
                },
                decimals=0,
            ),
            Panel(
                "Usage records in outboxes",
                "They wait in a gateway for the quota service.",
                {
                    'max by (instance) (baton_gateway_outbox_records{component="gateway"})': (
                        "{{instance}}"
                    )
                },
                limit=1000,
                decimals=0,
            ),
            Panel(
                "Usage records archived",
                "Taken from Redis into the archive's files.",
                {rate("baton_quota_archived_records_total", "outcome", labels=""): "{{outcome}}"},
                "ops",
            ),
            Panel(
                "Calls without an answer",
                "From Redis, by call. Empty when all is well.",
                {rate("baton_quota_store_failures_total", "call", labels=""): "{{call}}"},
                "ops",
            ),
        ],
    },
)

KV = Dashboard(
    "baton-kv",
    "Baton / KV and cache",
    "Blocks: who holds them, how they travel, how often they need not be computed.",
    {
        "Blocks": [
            Panel(
                "Blocks in use",
                "Share of each worker's KV pool.",
                {f"vllm:kv_cache_usage_perc{{{OF_MODEL}}}": "{{instance}}"},
                "percentunit",
                most=1,
                limit=0.95,
            ),
            Panel(
                "Blocks promised",
                "To requests that wait for prefill, as a share of the pool.",
                {
                    f"baton_kv_blocks_promised{{{OF_MODEL}}} / baton_kv_blocks{{{OF_MODEL}}}": (
                        "{{instance}}"
                    )
                },
                "percentunit",
                most=1,
            ),
            Panel(
                "Batch",
                "Mean number of sequences computed together in a step.",
                {mean("baton_step_batch_size", "instance"): "{{instance}}"},
            ),
        ],
        "Prefix cache": [
            Panel(
                "Hit rate",
                "Share of the prompt tokens that workers found in their caches.",
                {
                    rate("vllm:prefix_cache_hits_total", "component")
                    + " / "
                    + rate("vllm:prefix_cache_queries_total", "component"): (
                        "found by {{component}} workers"
                    ),
                    rate("baton_router_predicted_cached_tokens_total")
                    + " / "
                    + rate("baton_router_prompt_tokens_total"): "foreseen by the router",
                },
                "percentunit",
                most=1,
            ),
            Panel(
                "Preemptions",
                "Sequences that lost their blocks and are computed again.",
                {rate("vllm:num_preemptions_total", "instance"): "{{instance}}"},
                "ops",
            ),
            Panel(
                "Queued prefill",
                "What waits for or is in prefill, at the measured rates of the pool.",
                {
                    "max by (model_name, role) "
                    f"(baton_router_queued_prefill_seconds{{{OF_MODEL}}})": (
                        "{{model_name}} {{role}}"
                    )
                },
                "s",
                limit=10,
            ),
        ],
        "Handoff": [
            Panel(
                "Bytes moved",
                "Received KV blocks, by transport.",
                {
                    rate(
                        "baton_handoff_bytes_total", "transport", labels='direction="received"'
                    ): "{{transport}}"
                },
                "Bps",
            ),
            Panel(
                "Transfers that ended",
                "By outcome, seen from both sides.",
                {
                    rate("baton_handoff_transfers_total", "direction", "outcome", labels=""): (
                        "{{direction}} {{outcome}}"
                    )
                },
                "ops",
            ),
            Panel(
                "Bad blocks and fallbacks",
                "Since the workers started: blocks refused and computed again, by cause; links "
                "that fell back to gRPC. Empty when all is well.",
                {
                    since_start("baton_handoff_bad_blocks_total", "cause"): "bad: {{cause}}",
                    since_start("baton_handoff_fallbacks_total", "transport"): (
                        "{{transport}} given up"
                    ),
                },
                decimals=0,
            ),
        ],
    },
)

DASHBOARDS = (FLEET, STAGES, TENANTS, KV)
