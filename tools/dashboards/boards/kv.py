"""The dashboard of the KV cache and its handoffs."""

from tools.dashboards.panels import (
    OF_MODEL,
    OF_RELEASE,
    OF_WORKER,
    Dashboard,
    Panel,
    mean,
    of_release,
    rate,
    since_start,
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
                {f"vllm:kv_cache_usage_perc{{{OF_WORKER}}}": "{{instance}}"},
                "percentunit",
                most=1,
                limit=0.95,
            ),
            Panel(
                "Blocks promised",
                "To requests that wait for prefill, as a share of the pool.",
                {
                    f"baton_kv_blocks_promised{{{OF_WORKER}}} / baton_kv_blocks{{{OF_WORKER}}}": (
                        "{{instance}}"
                    )
                },
                "percentunit",
                most=1,
            ),
            Panel(
                "Batch",
                "Mean number of sequences computed together in a step.",
                {mean("baton_step_batch_size", "instance", labels=OF_WORKER): "{{instance}}"},
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
                {rate("vllm:num_preemptions_total", "instance", labels=OF_WORKER): "{{instance}}"},
                "ops",
            ),
            Panel(
                "Queued prefill",
                "What waits for or is in prefill, at the measured rates of the pool.",
                {
                    "max by (namespace, release, model_name, role) "
                    f"(baton_router_queued_prefill_seconds{{{OF_MODEL}}})": (
                        "{{model_name}} {{role}} {{namespace}} {{release}}"
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
                        "baton_handoff_bytes_total",
                        "transport",
                        labels=of_release('direction="received"'),
                    ): "{{transport}}"
                },
                "Bps",
            ),
            Panel(
                "Transfers that ended",
                "By outcome, seen from both sides.",
                {
                    rate(
                        "baton_handoff_transfers_total", "direction", "outcome", labels=OF_RELEASE
                    ): ("{{direction}} {{outcome}}")
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
