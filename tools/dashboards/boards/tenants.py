"""The dashboard of the tenants."""

from tools.dashboards.panels import OF_RELEASE, Dashboard, Panel, of_release, rate, since_start

_BUSY, _UNBILLED = (
    rate(f"baton_engine_{part}_seconds", labels=OF_RELEASE) for part in ("busy", "unbilled")
)

_OF_GATEWAYS = of_release('component="gateway"')

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
                    + rate(
                        "baton_quota_tenant_tokens_total",
                        "tenant",
                        labels=of_release('kind!="cached"'),
                    )
                    + " > 0)": "{{tenant}}"
                },
                "short",
                is_stacked=True,
            ),
            Panel(
                "Prompt tokens served from caches",
                "Share of each tenant's prompt tokens that came from the prefix cache.",
                {
                    rate(
                        "baton_quota_tenant_tokens_total",
                        "tenant",
                        labels=of_release('kind="cached"'),
                    )
                    + " / "
                    + rate(
                        "baton_quota_tenant_tokens_total",
                        "tenant",
                        labels=of_release('kind="prompt"'),
                    ): ("{{tenant}}")
                },
                "percentunit",
                most=1,
            ),
        ],
        "Engine time": [
            Panel(
                "Engines used, by tenant",
                "Engine time on bills, in engines: 1 = one worker all the time.",
                {
                    "topk(12, "
                    + rate(
                        "baton_quota_tenant_engine_seconds_total",
                        "tenant",
                        labels=of_release('kind!="wasted"'),
                    )
                    + " > 0)": "{{tenant}}"
                },
                is_stacked=True,
            ),
            Panel(
                "What the engines did",
                "In engines. Unbilled are probes, and work that no bill waited for any more. The "
                "stack's height is the number of workers.",
                {
                    f"{_BUSY} - {_UNBILLED}": "for requests",
                    _UNBILLED: "unbilled",
                    f"{rate('baton_engine_uptime_seconds', labels=OF_RELEASE)} - {_BUSY}": "idle",
                },
                is_stacked=True,
            ),
            Panel(
                "Wasted, by tenant",
                "The share of each tenant's engine time that brought nothing: cancelled, migrated "
                "or preempted.",
                {
                    rate(
                        "baton_quota_tenant_engine_seconds_total",
                        "tenant",
                        labels=of_release('kind="wasted"'),
                    )
                    + " / "
                    + rate(
                        "baton_quota_tenant_engine_seconds_total",
                        "tenant",
                        labels=of_release('kind!="wasted"'),
                    ): "{{tenant}}"
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
                        "baton_quota_tenant_requests_total",
                        "tenant",
                        labels=of_release('outcome="granted"'),
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
                        labels=of_release('outcome!="granted"'),
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
                    since_start(
                        "baton_quota_renewals_total", "state", labels=of_release('state!="held"')
                    ): ("renewal {{state}}"),
                },
                decimals=0,
            ),
            Panel(
                "Usage records in outboxes",
                "They wait in a gateway for the quota service.",
                {
                    f"max by (instance) (baton_gateway_outbox_records{{{_OF_GATEWAYS}}})": (
                        "{{instance}}"
                    )
                },
                limit=1000,
                decimals=0,
            ),
            Panel(
                "Usage records archived",
                "Taken from Redis into the archive's files.",
                {
                    rate(
                        "baton_quota_archived_records_total", "outcome", labels=OF_RELEASE
                    ): "{{outcome}}"
                },
                "ops",
            ),
            Panel(
                "Calls without an answer",
                "From Redis, by call. Empty when all is well.",
                {rate("baton_quota_store_failures_total", "call", labels=OF_RELEASE): "{{call}}"},
                "ops",
            ),
        ],
    },
)
