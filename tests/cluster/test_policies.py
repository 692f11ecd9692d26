"""Network policies: who is not of the release reaches the way in, and no other server of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.release import Release, image
from tests.kit.kube.real_cluster import RESTRICTED, RESTRICTED_POD, Namespace

# A port of each component that listens.
PORTS = {
    "envoy": 8080,
    "edge": 18000,
    "gateway": 8080,
    "quota": 7000,
    "tokenizer": 7000,
    "router": 7000,
    "prefill": 7000,
    "decode": 7000,
    "redis": 6379,
}
LISTENER, STRANGER = "listener", "stranger"
SERVES = "import socket; socket.create_connection(('127.0.0.1', 8080), timeout=1)"
# Prints those of the places in PLACES that take a connection.
PROGRAM = """
import json, socket
reached = []
for name, place in PLACES.items():
    try:
        socket.create_connection(place, timeout=5).close()
        reached.append(name)
    except OSError:
        pass
print(json.dumps(reached))
"""


def pod(name: str, namespace: str, *command: str) -> dict[str, Any]:
    container = {
        "name": name,
        "image": image("gateway"),
        "command": ["python", *command],
        "securityContext": RESTRICTED,
        "readinessProbe": {"exec": {"command": ["python", "-c", SERVES]}, "periodSeconds": 1},
    }
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    spec = {"securityContext": RESTRICTED_POD, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture
def namespace(release: Release) -> Iterator[Namespace]:
    """The release's, with a stranger in it and a pod that nobody may reach."""
    found = release.namespace
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": LISTENER, "namespace": found.name},
        "spec": {"podSelector": {"matchLabels": {"app": LISTENER}}, "policyTypes": ["Ingress"]},
    }
    found.apply(
        policy,
        pod(LISTENER, found.name, "-m", "http.server", "8080", "--directory", "/tmp"),
        pod(STRANGER, found.name, "-m", "http.server", "8080", "--directory", "/tmp"),
    )
    names = (f"pod/{LISTENER}", f"pod/{STRANGER}")
    found.kubectl("wait", "--for=condition=Ready", "--timeout=120s", *names)
    yield found
    found.kubectl("delete", f"networkpolicy/{LISTENER}", *names)


def reached(namespace: Namespace, places: dict[str, tuple[str, int]]) -> list[str]:
    program = PROGRAM.replace("PLACES", repr(places))
    out: list[str] = json.loads(namespace.kubectl("exec", STRANGER, "--", "python", "-c", program))
    return out


def test_a_stranger_reaches_the_way_in_alone(namespace: Namespace) -> None:
    if reached(namespace, {LISTENER: (namespace.address(LISTENER), 8080)}):
        pytest.skip("the network of this cluster enforces no policies: it lacks a plugin that does")
    places = {
        component: (namespace.address(namespace.pods(component)[0]), port)
        for component, port in PORTS.items()
        if namespace.pods(component)
    }
    assert len(places) > 1
    assert reached(namespace, places) == ["envoy" if "envoy" in places else "gateway"]
