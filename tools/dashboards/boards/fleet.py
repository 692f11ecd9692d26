"""The dashboard of the whole fleet."""

from tools.dashboards.panels import (
    OF_MODEL,
    OF_RELEASE,
    Dashboard,
    Panel,
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
                    rate("baton_gateway_refused_requests_total", "reason", labels=OF_RELEASE)
                    + " > 0": ("refused: {{reason}}"),
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
                    f"sum(baton_gateway_open_requests{{{OF_RELEASE}}})": "in gateways",
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
                    "max by (namespace, release, model_name, role) "
                    f"(baton_router_ready_workers{{{OF_MODEL}}})": (
                        "{{model_name}} {{role}} {{namespace}} {{release}}"
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
                quantiles("baton_gateway_move_seconds", labels=OF_RELEASE),
                "s",
            ),
            Panel(
                "Workers left out",
                "Since the routers started, by why: stalled, silent, failing. And requests refused "
                "since they killed workers.",
                {
                    # Every router counts all that it sees.
                    f"max by (cause) (baton_router_ejections_total{{{OF_MODEL}}})": "{{cause}}",
                    f"max(baton_router_quarantined_requests_total{{{OF_RELEASE}}})": (
                        "requests quarantined"
                    ),
                    since_start("baton_core_stalls_total"): "cores that stood still",
                },
                decimals=0,
            ),
            Panel(
                "Violations",
                "Invariants that were violated. Each is a log line with an id.",
                {f"sum by (check) (baton_audit_violations_total{{{OF_RELEASE}}})": "{{check}}"},
                kind="stat",
                decimals=0,
                colours={1: "red"},
                nothing="none",
            ),
        ],
    },
)
