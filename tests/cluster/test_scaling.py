"""The cluster's own scaler, by the cluster's own metrics: more gateways while streams are many."""

import json
import time

import pytest

from tests.cluster.release import Release
from tests.kit.kube.real_cluster import CommandError, run, wait_until

METRICS = "/apis/metrics.k8s.io/v1beta1"
NO_METRICS = (
    "needs a metrics server: kubectl apply -f "
    "https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml"
)
SCALED = {
    "gateway.autoscaling.enabled": "true",
    "gateway.autoscaling.minReplicas": "1",
    "gateway.autoscaling.maxReplicas": "2",
    "gateway.resources.requests.cpu": "500m",
}
# Of what a gateway asks for: more than one takes that nobody asks.
UNREACHED = 100
# A metrics server asks each minute, the scaler every 15 s.
SCALED_S = 240
QUIET_S = 45


def has_metrics() -> bool:
    try:
        return bool(json.loads(run("kubectl", "get", "--raw", f"{METRICS}/nodes"))["items"])
    except CommandError:
        return False


def test_no_client_notices_that_the_cluster_adds_gateways(release: Release) -> None:
    if not has_metrics():
        pytest.skip(NO_METRICS)
    # A scaler takes over the number that it finds.
    release.upgrade("--set", "gateway.replicas=1")
    try:
        scale_at(release, UNREACHED)
        wait_until(lambda: used_percent(release) is not None, "a metric was read", SCALED_S)
        idle = used_percent(release)
        assert idle is not None
        scale_at(release, 2 * max(idle, 1))
        until_s = time.monotonic() + QUIET_S
        while time.monotonic() < until_s:
            assert num_ready(release) == 1, "nobody streams"
            time.sleep(1)

        def grow() -> None:
            wait_until(lambda: num_ready(release) == 2, "a second gateway", SCALED_S)

        release.case("more gateways by the cluster's metrics", grow)
    finally:
        release.upgrade()


def scale_at(release: Release, percent: int) -> None:
    options = {**SCALED, "gateway.autoscaling.cpuPercent": str(percent)}
    release.upgrade(*(word for pair in options.items() for word in ("--set", "=".join(pair))))


def num_ready(release: Release) -> int:
    deployment = release.namespace.get("deployment", f"{release.fullname}-gateway")
    return int(deployment["status"].get("readyReplicas", 0))


def used_percent(release: Release) -> int | None:
    """Of what gateways ask for, by the scaler; None before it has read a metric."""
    scaler = release.namespace.get("hpa", f"{release.fullname}-gateway")
    # One that was not read yet has no more than an empty type.
    for one in scaler["status"].get("currentMetrics") or []:
        used = one.get("resource", {}).get("current", {})
        if "averageUtilization" in used:
            return int(used["averageUtilization"])
    return None
