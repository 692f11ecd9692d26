"""Counts per tenant: right, once, and for a bounded number of names."""

import pytest
from prometheus_client import REGISTRY

from baton.wire import failures
from baton.wire.v1 import failure_pb2, quota_pb2
from services.quota.tenant_meter import OTHERS, TenantMeter


def tokens(tenant: str, kind: str) -> float:
    labels = {"tenant": tenant, "kind": kind}
    return REGISTRY.get_sample_value("baton_quota_tenant_tokens_total", labels) or 0.0


def requests(tenant: str, outcome: str) -> float:
    labels = {"tenant": tenant, "outcome": outcome}
    return REGISTRY.get_sample_value("baton_quota_tenant_requests_total", labels) or 0.0


async def test_a_request_counts_once_however_often_it_is_settled(bench):
    key = await bench.new_key("metered", requests_per_minute=1)
    await bench.reserve(key, "r1")
    for _ in range(2):
        await bench.settle(key, "r1", prompt=10, output=7)
    assert (tokens("metered", "prompt"), tokens("metered", "output")) == (10, 7)
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(key, "r2")
    assert (requests("metered", "granted"), requests("metered", "requests")) == (1, 1)


def test_beyond_the_bound_tenants_share_a_label() -> None:
    meter = TenantMeter(max_tenants=2)
    before = tokens(OTHERS, "output")
    for number in range(5):
        meter.settled(quota_pb2.UsageRecord(tenant=f"crowd-{number}", num_output_tokens=1))
    meter.settled(quota_pb2.UsageRecord(tenant="crowd-1", num_output_tokens=1))
    assert tokens("crowd-1", "output") == 2
    assert tokens("crowd-2", "output") == 0
    assert tokens(OTHERS, "output") == before + 3


def test_the_time_of_engines_is_counted_by_stage_and_the_wasted_part_beside_it() -> None:
    engine = failure_pb2.EngineTime(
        prefill_us=2_000_000, decode_us=3_000_000, cancelled_us=500_000, migrated_us=250_000
    )
    TenantMeter(max_tenants=1).settled(quota_pb2.UsageRecord(tenant="busy", engine=engine))
    name = "baton_quota_tenant_engine_seconds_total"
    seconds = [
        REGISTRY.get_sample_value(name, {"tenant": "busy", "kind": kind})
        for kind in ("prefill", "decode", "wasted")
    ]
    assert seconds == [2, 3, 0.75]
