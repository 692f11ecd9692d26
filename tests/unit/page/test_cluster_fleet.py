"""From EndpointSlices to the pods of a release.

recorded_slices.json is what Kubernetes 1.34 made of the chart's Services and of pods with these
names, one of which was not ready.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import needs

pytest.importorskip("kubernetes", reason=needs.KUBERNETES)

from baton.page.fleet_source import Service
from baton.runtime.discovery.kubernetes import Slice
from services.page.cluster_fleet import ClusterFleet, services_of

RECORDED = Path(__file__).with_name("recorded_slices.json").read_bytes()
ONE = [{"addresses": ["1.1.1.1"]}]
HASH = "5d4f8c7b9"


def recorded() -> list[Any]:
    return list(msgspec.json.decode(RECORDED))


def services(slices: list[Any]) -> list[Service]:
    return services_of(msgspec.convert(slices, list[Slice]), 9090)


def test_every_pod_is_there_once_by_role_with_its_ports() -> None:
    found = services(recorded())
    assert [(each.role, each.name) for each in found] == [
        ("gateway", f"baton-gateway-{HASH}-x0k4j"),
        ("gateway", f"baton-gateway-{HASH}-x1k4j"),
        ("quota", "baton-quota-0"),
        ("quota", "baton-quota-1"),
        ("router", "baton-router-0"),
        ("router", "baton-router-1"),
        ("prefill", f"baton-baton-demo-prefill-{HASH}-x0k4j"),
        ("decode", f"baton-baton-demo-decode-{HASH}-x0k4j"),
        ("decode", f"baton-baton-demo-decode-{HASH}-x1k4j"),
        ("envoy", f"baton-envoy-{HASH}-x0k4j"),
        ("envoy", f"baton-envoy-{HASH}-x1k4j"),
        ("redis", "baton-redis-0"),
    ]
    prefill = next(each for each in found if each.role == "prefill")
    # As routers name it in the spans of handoffs.
    assert prefill.endpoint == "10.244.7.10:7000"
    assert prefill.metrics_url == "http://10.244.7.10:9090/metrics"
    envoy = next(each for each in found if each.role == "envoy")
    assert (envoy.endpoint, envoy.metrics_url) == ("", "http://10.244.7.20:9090/ready")


def test_a_pod_that_is_not_ready_is_asked_itself_and_the_cluster_where_it_has_no_port() -> None:
    slices = recorded()
    redis = next(part for part in slices if part["metadata"]["name"].startswith("baton-redis"))
    redis["endpoints"][0]["conditions"]["ready"] = False
    found = {each.name: each for each in services(slices)}
    assert not found["baton-redis-0"].is_running
    unready = found[f"baton-baton-demo-decode-{HASH}-x1k4j"]
    assert unready.is_running
    assert unready.metrics_url


def test_a_pod_in_two_slices_keeps_the_address_of_its_grpc_port() -> None:
    for slices in (recorded(), recorded()[::-1]):
        quota = next(each for each in services(slices) if each.name == "baton-quota-0")
        assert quota.endpoint == "10.244.7.22:7000"


def test_a_slice_of_anything_else_names_no_pod() -> None:
    strange = [
        {
            "metadata": {"name": "a"},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["1.1.1.1"]}],
        },
        {
            "metadata": {"name": "b", "labels": {"app.kubernetes.io/component": "gateway"}},
            "addressType": "FQDN",
            "endpoints": [{"addresses": ["gateway.example"]}],
        },
        {
            "metadata": {"name": "c", "labels": {"app.kubernetes.io/component": "gateway"}},
            "addressType": "IPv6",
            "endpoints": [{"addresses": ["fd00::1"]}],
        },
    ]
    (found,) = services(strange)
    assert (found.name, found.metrics_url) == ("fd00::1", "http://[fd00::1]:9090/metrics")


def test_before_the_first_report_there_is_no_fleet_and_after_one_it_has_the_releases_name() -> None:
    fleet = ClusterFleet("baton in default", 9090)
    assert fleet.fleet() is None
    fleet.found(msgspec.convert(recorded(), list[Slice]))
    told = fleet.fleet()
    assert told is not None
    assert (told.title, len(told.services)) == ("baton in default", 12)
