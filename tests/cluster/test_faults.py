"""Pods that die, pods that nobody reaches, and a cluster whose own services are away."""

import time

import pytest

from tests.cluster.release import Release
from tests.kit.kube.cluster_load import is_broken, is_cut_off, never
from tests.kit.kube.real_cluster import dropped, kill, run

CUT_S = 15
# Of all that could answer: a stream is given up after 5 s, a pool is waited for for 10 s.
ALL_CUT_S = 5
# A client's connection, or the rest of its answer, ends with the pod.
WAYS_IN = {"gateway": is_broken, "envoy": is_broken}
# What an Envoy had taken when it was cut off it can give to no gateway.
CUT_OFF = {"gateway": is_broken, "envoy": is_cut_off}
BEHIND = ("quota", "tokenizer", "router", "decode", "prefill", "edge", "redis")


@pytest.mark.parametrize("component", [*BEHIND, *WAYS_IN])
def test_no_client_notices_a_killed_process(release: Release, component: str) -> None:
    def strike() -> None:
        kill(release.namespace.containers(release.namespace.pods(component)[0]))

    release.case(f"SIGKILL of one {component}", strike, may_fail=WAYS_IN.get(component, never))


@pytest.mark.parametrize("component", ["quota", "tokenizer", "router", "decode"])
def test_no_client_notices_that_all_replicas_die_at_once(release: Release, component: str) -> None:
    # Kubernetes waits longer before each restart of the same pod.
    release.namespace.renew(component)

    def strike() -> None:
        kill(release.namespace.containers(*release.namespace.pods(component)))

    release.case(f"SIGKILL of every {component} at once", strike)


@pytest.mark.parametrize("component", [*BEHIND, *WAYS_IN])
def test_no_client_notices_a_pod_that_nobody_reaches(release: Release, component: str) -> None:
    def cut_off() -> None:
        address = release.namespace.address(release.namespace.pods(component)[0])
        with dropped(f"FORWARD -s {address}", f"FORWARD -d {address}"):
            time.sleep(CUT_S)

    name = f"{CUT_S} s of dropped packets around one {component}"
    release.case(name, cut_off, may_fail=CUT_OFF.get(component, never))


@pytest.mark.parametrize("component", ["quota", "tokenizer", "router", "decode"])
def test_no_client_notices_that_nobody_reaches_any_replica(
    release: Release, component: str
) -> None:
    def cut_off() -> None:
        pods = release.namespace.pods(component)
        assert len(pods) > 1
        addresses = map(release.namespace.address, pods)
        rules = (rule for a in addresses for rule in (f"FORWARD -s {a}", f"FORWARD -d {a}"))
        with dropped(*rules):
            time.sleep(ALL_CUT_S)

    name = f"{ALL_CUT_S} s of dropped packets around every {component}"
    release.case(name, cut_off, away_s=ALL_CUT_S)


def test_no_client_notices_that_the_api_server_is_away(release: Release) -> None:
    def away() -> None:
        with dropped("INPUT ! -i lo -p tcp --dport 6443"):
            time.sleep(CUT_S)

    release.case(f"API server away for {CUT_S} s", away)


def test_no_client_notices_a_worker_that_dies_while_the_api_server_is_away(
    release: Release,
) -> None:
    def strike() -> None:
        containers = release.namespace.containers(release.namespace.pods("decode")[0])
        with dropped("INPUT ! -i lo -p tcp --dport 6443"):
            kill(containers)
            time.sleep(CUT_S)

    release.case("SIGKILL of one decode while the API server is away", strike)


def test_no_client_notices_that_names_cannot_be_resolved(release: Release) -> None:
    def away() -> None:
        scale = ("kubectl", "-n", "kube-system", "scale", "deployment", "coredns")
        run(*scale, "--replicas=0")
        try:
            time.sleep(CUT_S)
        finally:
            run(*scale, "--replicas=1")
            run("kubectl", "-n", "kube-system", "rollout", "status", "deployment/coredns")

    release.case(f"DNS away for {CUT_S} s", away)
