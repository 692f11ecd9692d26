"""The dashboard of a request's stages, and of its picks."""

from tools.dashboards.panels import OF_RELEASE, Dashboard, Panel, mean, quantile, quantiles, rate

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
                {quantile(0.95, "baton_cancel_seconds", "phase", labels=OF_RELEASE): "{{phase}}"},
                "s",
            ),
        ],
    },
)
