"""What a real API server says to each profile: its schemas strictly, and Pod Security to its pods.

Deployments are admitted whatever their pods are, for it is the pods that Pod Security looks at; so
each workload's pod is sent by itself, too. Everything is a dry run: admitted, and not kept.
"""

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.chart.rendered import PROFILES, WORKLOADS, Object, of_kind, pod_of, profile
from tests.kit.kube.real_api_server import RealApiServer, asset

TIMEOUT_S = 120
# RDMA needs a capability that `restricted` refuses, and `baseline` too (values.yaml, pools.rdma).
WITH_RDMA = {"h100-rdma", "llama-70b", "qwen3-32b"}
REFUSED = "unrestricted capabilities"
# What pods of the profiles name, and a cluster has.
ADMINISTRATORS = (
    ("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "serving"}, "value": 1}),
    (
        "/apis/node.k8s.io/v1/runtimeclasses",
        {"metadata": {"name": "nvidia"}, "handler": "nvidia"},
    ),
)
Apply = Callable[[str, list[Object]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(real_api_server: RealApiServer) -> RealApiServer:
    for path, body in ADMINISTRATORS:
        real_api_server.http.post(path, json=body).raise_for_status()
    return real_api_server


@pytest.fixture(scope="module")
def kinds(server: RealApiServer) -> set[tuple[str, str]]:
    """All that the server knows: API version and kind."""
    groups = server.http.get("/apis").raise_for_status().json()["groups"]
    versions = [version["groupVersion"] for group in groups for version in group["versions"]]
    known = set()
    for path, version in [("/api/v1", "v1"), *((f"/apis/{one}", one) for one in versions)]:
        found = server.http.get(path).raise_for_status().json()["resources"]
        known |= {(version, each["kind"]) for each in found}
    return known


@pytest.fixture
def apply(server: RealApiServer) -> Apply:
    """`kubectl apply` of objects to a namespace, strictly and as a dry run."""
    config = server.kubeconfig()
    strictly = ("--dry-run=server", "--validate=strict", "-f", "-")

    def applied(namespace: str, objects: list[Object]) -> subprocess.CompletedProcess[str]:
        placed = [
            {**one, "metadata": {**one["metadata"], "namespace": namespace}} for one in objects
        ]
        command = [str(asset("kubectl")), f"--kubeconfig={config}", "apply", *strictly]
        # Each for itself: a list is looked through by kubectl, and not by the server.
        given = "\n---\n".join(map(json.dumps, placed))
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    return applied


def pods(objects: list[Object]) -> list[Object]:
    """One of each workload, as its controller would make it."""
    made = []
    for workload in of_kind(objects, *WORKLOADS):
        template = pod_of(workload)
        labels = {**template["metadata"], "name": workload["metadata"]["name"]}
        volumes = [
            {"name": name, "emptyDir": {}}
            for claim in workload["spec"].get("volumeClaimTemplates", ())
            for name in [claim["metadata"]["name"]]
        ]
        spec = {"restartPolicy": "Always", **template["spec"]}
        spec["volumes"] = [*spec.get("volumes", ()), *volumes]
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": labels, "spec": spec})
    return made


@pytest.mark.parametrize("name", PROFILES)
def test_every_object_of_a_profile_is_accepted_by_the_real_server(
    name: str,
    server: RealApiServer,
    kinds: set[tuple[str, str]],
    apply: Apply,
    record_property: Callable[[str, object], None],
) -> None:
    objects = profile(name)
    known = [one for one in objects if (one["apiVersion"], one["kind"]) in kinds]
    foreign = sorted({one["kind"] for one in objects if one not in known})
    if foreign:
        record_property(f"left aside of {name}", ", ".join(foreign))
    # Only operators' kinds may be left aside.
    assert not [one for one in objects if one not in known and "." not in one["apiVersion"]]
    done = apply(server.new_namespace(enforce="restricted"), known)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("created (server dry run)") == len(known)


@pytest.mark.parametrize("name", PROFILES)
def test_the_real_server_admits_every_pod_under_restricted_but_those_with_rdma(
    name: str, server: RealApiServer, apply: Apply
) -> None:
    made = pods(profile(name))
    with_rdma = [pod for pod in made if "IPC_LOCK" in json.dumps(pod)]
    assert bool(with_rdma) == (name in WITH_RDMA)
    restricted = server.new_namespace(enforce="restricted")
    done = apply(restricted, [pod for pod in made if pod not in with_rdma])
    assert done.returncode == 0, done.stderr
    for pod in with_rdma:
        refused = apply(restricted, [pod])
        assert refused.returncode != 0
        assert REFUSED in refused.stderr
    if with_rdma:
        allowed = apply(server.new_namespace(enforce="privileged"), with_rdma)
        assert allowed.returncode == 0, allowed.stderr


def test_the_real_server_refuses_what_it_should(server: RealApiServer, apply: Apply) -> None:
    """The tests above would notice: an unknown field, and a pod that runs as root."""
    (worker, *_) = [one for one in profile("default") if one["kind"] == "StatefulSet"]
    namespace = server.new_namespace(enforce="restricted")
    wrong = apply(namespace, [{**worker, "spec": {**worker["spec"], "replica": 1}}])
    assert 'unknown field "spec.replica"' in wrong.stderr
    (pod,) = pods([worker])
    pod["spec"]["securityContext"] = {}
    assert "violates PodSecurity" in apply(namespace, [pod]).stderr
