"""Each alert fires when it should and is silent when it should be: Prometheus' own rule tests.

Time is the rule tests' own. Metrics come every 15 s, and so are rules looked at; those of the
objectives, which look back for days, every minute.
"""

from pathlib import Path

import pytest

from baton.wire.failures import REASONS
from tests import needs
from tests.chart.seeing.objective_cases import EVERY, OBJECTIVES
from tests.chart.seeing.rule_tests import ALERTS, RULES, Case, Series, check, reasons

EVERY_S = 15
WORKER = 'engine="0",model_name="demo"'


def ready(role: str, router: str = "r1") -> str:
    return f'baton_router_ready_workers{{model_name="demo",role="{role}",instance="{router}"}}'


def failed(reason: str) -> str:
    return f'baton_gateway_failed_requests_total{{model_name="demo",reason="{reason}"}}'


ENDED = 'vllm:e2e_request_latency_seconds_count{model_name="demo"}'


def first_tokens(fast: str, slow: str) -> Series:
    """Requests whose first token came within 1 s, and within 10 s."""
    name = 'vllm:time_to_first_token_seconds_bucket{model_name="demo",le="%s"}'
    return {name % "1": fast, name % "10": slow, name % "+Inf": slow}


def pool(worker: str, component: str, used: float, promised: int) -> Series:
    """A worker of 100 blocks."""
    labels = f'{{{WORKER},component="{component}",instance="{worker}"}}'
    return {
        f"vllm:kv_cache_usage_perc{labels}": f"{used}+0x80",
        f"baton_kv_blocks_promised{labels}": f"{promised}+0x80",
        f"baton_kv_blocks{labels}": "100+0x80",
    }


def refused(reason: str, status: int) -> str:
    return f'baton_gateway_refused_requests_total{{reason="{reason}",status="{status}"}}'


def lost_spans(instance: str) -> str:
    return f'baton_spans_dropped_total{{reason="not_exported",instance="{instance}"}}'


def up(component: str, instance: str) -> str:
    return f'up{{component="{component}",instance="{instance}"}}'


CASES: dict[str, list[Case]] = {
    "BatonNoReadyWorkers": [
        Case(
            "the last worker of a pool is gone for more than a minute",
            {ready("decode"): "2+0x4 0+0x20", ready("prefill"): "1+0x24"},
            "3m",
            (({"model_name": "demo", "role": "decode"}, "No ready decode worker of demo"),),
        ),
        Case("a pool is empty for half a minute", {ready("decode"): "1+0x4 0+0x2 1+0x9"}, "105s"),
        Case(
            "one of two routers has not heard of the workers",
            {ready("decode", "r1"): "2+0x40", ready("decode", "r2"): "0+0x40"},
            "5m",
        ),
        Case("workers without prefill were never there", {ready("decode"): "2+0x40"}, "5m"),
    ],
    "BatonServiceGone": [
        Case(
            "no gateway answers",
            {up("gateway", "g1"): "1+0x4 0+0x20", up("gateway", "g2"): "1+0x4 0+0x20"},
            "5m",
            (({"component": "gateway"}, "No gateway answers Prometheus any more"),),
        ),
        Case(
            "its pods are no longer there",
            {up("router", "r1"): "1+0x4 stale", up("quota", "q1"): "1+0x40"},
            "5m",
            (({"component": "router"}, "No router answers Prometheus any more"),),
        ),
        Case(
            "one of two was replaced",
            {
                up("gateway", "g1"): "1+0x4 stale",
                up("gateway", "g2"): "1+0x40",
                up("gateway", "g3"): "_x6 1+0x40",
            },
            "5m",
        ),
    ],
    "BatonRequestsFail": [
        Case(
            "one request in ten fails on the server side",
            {ENDED: "0+150x80", failed("worker_lost"): "0+10x80", failed("overloaded"): "0+5x80"},
            "12m",
            (({"model_name": "demo"}, "10% of the requests for demo fail on the server side"),),
        ),
        Case(
            "all requests fail",
            {ENDED: "0+30x80", failed("internal"): "_ 30+30x80"},
            "12m",
            (({"model_name": "demo"}, "100% of the requests for demo fail on the server side"),),
        ),
        Case(
            "clients send what cannot be served",
            {ENDED: "0+30x80", failed("context_length_exceeded"): "0+15x80"},
            "12m",
        ),
        Case("one in 200 fails", {ENDED: "0+200x80", failed("worker_lost"): "0+1x80"}, "12m"),
        Case("nobody asks", {ENDED: "7+0x80", failed("worker_lost"): "7+0x80"}, "12m"),
    ],
    "BatonRequestsRefused": [
        Case(
            "nobody can say whose a key is",
            {ENDED: "0+90x80", refused("quota_unavailable", 503): "0+10x80"},
            "12m",
            (
                (
                    {"reason": "quota_unavailable"},
                    "10% of the requests are refused: quota_unavailable",
                ),
            ),
        ),
        Case(
            "no request gets any further",
            {refused("no_worker", 503): "0+10x80"},
            "12m",
            (({"reason": "no_worker"}, "100% of the requests are refused: no_worker"),),
        ),
        Case(
            "a client has a wrong key",
            {
                ENDED: "0+90x80",
                refused("invalid_api_key", 401): "0+10x80",
                refused("no_worker", 503): "0+0x80",
            },
            "12m",
        ),
        Case("one in 200", {ENDED: "0+199x80", refused("overloaded", 503): "0+1x80"}, "12m"),
    ],
    "BatonAuditViolation": [
        Case(
            "the first of its kind: the series was not there before",
            {'baton_audit_violations_total{check="leased",instance="d1"}': "_x8 1+0x40"},
            "3m",
            (({"check": "leased"}, "An invariant was violated: leased"),),
        ),
        Case(
            "its process has ended since",
            {'baton_audit_violations_total{check="leased",instance="d1"}': "_x8 1+0x4 stale"},
            "30m",
            (({"check": "leased"}, "An invariant was violated: leased"),),
        ),
        Case(
            "a new process began to count",
            {'baton_audit_violations_total{check="leased",instance="d1"}': "0+0x40"},
            "5m",
        ),
    ],
    "BatonSlowFirstToken": [
        Case(
            "one request in ten waits for ten seconds",
            first_tokens("0+9x80", "0+10x80"),
            "17m",
            (({"model_name": "demo"}, "First tokens of demo take 5.5s (p95)"),),
        ),
        Case("one in fifty does", first_tokens("0+49x80", "0+50x80"), "17m"),
        Case("nobody asks", first_tokens("9+0x80", "10+0x80"), "17m"),
    ],
    "BatonPrefillQueueGrows": [
        Case(
            "prompts wait for twelve seconds",
            {
                'baton_router_queued_prefill_seconds{model_name="demo",role="prefill",'
                f'instance="{router}"}}': values
                for router, values in (("r1", "12+0x80"), ("r2", "0+0x80"))
            },
            "10m",
            (
                (
                    {"model_name": "demo", "role": "prefill"},
                    "12s of prefill wait for the prefill workers of demo",
                ),
            ),
        ),
        Case(
            "a crowd came and was served",
            {
                'baton_router_queued_prefill_seconds{model_name="demo",role="prefill"}': (
                    "0+0x8 30+0x8 0+0x40"
                )
            },
            "4m",
        ),
    ],
    "BatonKvNearlyFull": [
        Case(
            "every decode worker is full, while prefill workers have room",
            {
                **pool("decode-1", "decode", 0.9, 8),
                **pool("decode-2", "decode", 0.97, 0),
                **pool("prefill-1", "prefill", 0.1, 0),
            },
            "15m",
            (
                (
                    {"model_name": "demo", "component": "decode"},
                    "Every decode worker of demo is out of KV blocks",
                ),
            ),
        ),
        Case(
            "one of two decode workers is full",
            {**pool("decode-1", "decode", 1, 0), **pool("decode-2", "decode", 0.5, 10)},
            "15m",
        ),
    ],
    "BatonWorkersAreLeftOut": [
        Case(
            "again and again",
            {'baton_router_ejections_total{model_name="demo",cause="stalled"}': "0+1x80"},
            "16m",
            (
                (
                    {"model_name": "demo", "cause": "stalled"},
                    "Workers of demo were ejected 60 times: stalled",
                ),
            ),
        ),
        Case(
            "both routers saw the same two",
            {
                'baton_router_ejections_total{model_name="demo",cause="silent",'
                f'instance="{router}"}}': "0+0x4 1+0x8 2+0x30"
                for router in ("r1", "r2")
            },
            "8m",
        ),
    ],
    "BatonPoisonRequest": [
        Case(
            "a request is quarantined",
            {"baton_router_quarantined_requests_total": "0+0x8 1+0x80"},
            "10m",
            (({}, "A request was quarantined: it killed two cores"),),
        ),
        Case(
            "one was, hours ago",
            {"baton_router_quarantined_requests_total": "0+0x8 1+0x300"},
            "70m",
        ),
        Case("none was", {"baton_router_quarantined_requests_total": "0+0x300"}, "10m"),
    ],
    "BatonBadBlocks": [
        Case(
            "a block in every quarter of a minute",
            {'baton_handoff_bad_blocks_total{cause="crc"}': "0+1x80"},
            "15m",
            (({"cause": "crc"}, "KV blocks arrive damaged: crc"),),
        ),
        Case("three", {'baton_handoff_bad_blocks_total{cause="crc"}': "0+0x8 3+0x80"}, "15m"),
    ],
    "BatonRedisAway": [
        Case(
            "calls go unanswered for minutes",
            {'baton_quota_store_failures_total{call="reserve"}': "_x4 5+5x40"},
            "6m",
            (({}, "The quota service cannot reach Redis"),),
        ),
        Case(
            "it was restarted",
            {'baton_quota_store_failures_total{call="reserve"}': "0+0x8 5+0x40"},
            "4m",
        ),
    ],
    "BatonUsageRecordsPileUp": [
        Case(
            "one gateway cannot settle",
            {
                'baton_gateway_outbox_records{instance="g1"}': "2000+0x80",
                'baton_gateway_outbox_records{instance="g2"}': "3+0x80",
            },
            "12m",
            (({"instance": "g1"}, "2k usage records wait in a gateway"),),
        ),
        Case(
            "Redis was away for five minutes",
            {'baton_gateway_outbox_records{instance="g1"}': "0+200x20 0+0x60"},
            "5m",
        ),
    ],
    "BatonSpansAreLost": [
        Case(
            "the collector is away",
            {lost_spans("g1"): "0+15x80", lost_spans("d1"): "0+15x80"},
            "17m",
            (({"reason": "not_exported"}, "2 spans a second are lost: not_exported"),),
        ),
        Case(
            "it was restarted",
            {lost_spans("g1"): "0+15x8 120+0x72"},
            "17m",
        ),
    ],
}


@needs.prometheus
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should_and_not_otherwise(name: str, tmp_path: Path) -> None:
    check(name, CASES[name], tmp_path, every=f"{EVERY_S}s")


@needs.prometheus
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_budget_that_burns_too_fast_is_told(name: str, tmp_path: Path) -> None:
    check(name, OBJECTIVES[name], tmp_path, every=EVERY)


def test_each_alert_has_been_seen_to_fire_and_to_be_silent() -> None:
    every_case = CASES | OBJECTIVES
    assert every_case.keys() == RULES.keys()
    for name, cases in every_case.items():
        assert {bool(case.fires) for case in cases} == {True, False}, name


def test_every_failure_of_ours_counts() -> None:
    ours = {reason for reason, row in REASONS.items() if row.http_status >= 500}
    # Its client did not read.
    ours -= {"client_stalled"}
    told = reasons(ALERTS.read_text())
    assert len(told) == 2
    assert all(one == ours for one in told)
