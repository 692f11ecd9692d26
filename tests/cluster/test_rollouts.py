"""Pods that leave when Kubernetes asks them to: every request around it is answered."""

import os

import pytest

from tests.cluster.release import Release

COMPONENTS = (
    "quota",
    "tokenizer",
    "router",
    "gateway",
    "envoy",
    "edge",
    "decode",
    "prefill",
    "redis",
)
TIMES = int(os.environ.get("EACH", "1"))


@pytest.mark.parametrize("component", COMPONENTS)
def test_no_client_notices_that_pods_are_restarted(release: Release, component: str) -> None:
    release.case(f"rollout of {component}", lambda: release.namespace.roll(component), TIMES)


def test_no_client_notices_that_all_pods_are_restarted_at_once(release: Release) -> None:
    def roll() -> None:
        for component in COMPONENTS:
            for workload in release.namespace.workloads(component):
                release.namespace.kubectl("rollout", "restart", workload)
        release.namespace.wait_until_whole()

    release.case("rollout of everything at once", roll)


@pytest.mark.parametrize("component", ["decode", "gateway"])
def test_a_drained_node_takes_no_pod_that_is_needed(release: Release, component: str) -> None:
    def evict() -> None:
        pod = release.namespace.pods(component)[0]
        path = f"/api/v1/namespaces/{release.namespace.name}/pods/{pod}/eviction"
        eviction = (
            f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}"}}}}'
        )
        release.namespace.kubectl("create", "--raw", path, "-f", "-", given=eviction)
        release.namespace.wait_until_whole()

    release.case(f"eviction of a pod of {component}", evict)
