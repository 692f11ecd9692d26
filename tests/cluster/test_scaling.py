"""The cluster's own scaler, by the cluster's own metrics: more gateways while streams are many."""

import json

import pytest

from tests.cluster.release import Release
from tests.kit.kube.real_cluster import CommandError, run, wait_until

METRICS = "/apis/metrics.k8s.io/v1beta1"
NO_METRICS = (
    "needs a metrics server: kubectl apply -f "
    "https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml"
)
# 30 thousandths of a core: more than a gateway takes for nothing, less than streams take.
SCALED = (
    "gateway.autoscaling.enabled=true",
    "gateway.autoscaling.minReplicas=1",
    "gateway.autoscaling.maxReplicas=2",
    "gateway.autoscaling.cpuPercent=6",
    "gateway.resources.requests.cpu=500m",
)
# A metrics server asks each minute, the scaler every 15 s.
SCALED_S = 240


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
    options = [text for value in SCALED for text in ("--set", value)]
    release.upgrade(*options)
    try:
        wait_until(lambda: has_measured(release), "the scaler has read a metric", SCALED_S)
        assert num_ready(release) == 1

        def grow() -> None:
            wait_until(lambda: num_ready(release) == 2, "a second gateway", SCALED_S)

        release.case("more gateways by the cluster's metrics", grow)
    finally:
        release.upgrade()


def num_ready(release: Release) -> int:
    deployment = release.namespace.get("deployment", f"{release.fullname}-gateway")
    return int(deployment["status"].get("readyReplicas", 0))


def has_measured(release: Release) -> bool:
    scaler = release.namespace.get("hpa", f"{release.fullname}-gateway")
    metrics = scaler["status"].get("currentMetrics") or []
    return any("averageUtilization" in one["resource"]["current"] for one in metrics)
