"""A Kubernetes that runs elsewhere, as the tests of the chart use it: kubectl, helm and one node.

`NODE` is the command that runs another one on the node as root ("docker exec kind-control-plane";
empty where the node is this machine): processes are killed and packets dropped there.
"""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

COMMAND_TIMEOUT_S = 300
# As containerd keeps the containers of Kubernetes.
CTR = ("ctr", "-n", "k8s.io")

# What Pod Security `restricted` asks of a pod and of its containers.
RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class CommandError(AssertionError):
    """A command failed; the message has what it printed."""


def run(*command: str, given: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a command and return what it printed. Raises CommandError."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise CommandError(f"{shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 180) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not after {timeout_s:.0f} s"
        time.sleep(0.5)


def on_node(*command: str) -> str:
    """Run a command on the node as root."""
    return run(*shlex.split(os.environ.get("NODE", "")), *command)


class Namespace:
    """One namespace of the cluster, with Pod Security `restricted` enforced."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": self.name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def delete(self) -> None:
        run("kubectl", "delete", "namespace", self.name, "--ignore-not-found")

    def kubectl(self, *arguments: str, given: str = "") -> str:
        return run("kubectl", "-n", self.name, *arguments, given=given)

    def helm(self, *arguments: str) -> str:
        return run("helm", "-n", self.name, *arguments, timeout_s=900)

    def apply(self, *objects: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        run("kubectl", "apply", "-f", "-", given=json.dumps(listed))

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def pods(self, component: str) -> list[str]:
        """The names of a component's pods that are not leaving, the oldest first."""
        items = self.get("pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        staying = [p["metadata"] for p in items if "deletionTimestamp" not in p["metadata"]]
        staying.sort(key=lambda metadata: metadata["creationTimestamp"])
        return [metadata["name"] for metadata in staying]

    def workloads(self, component: str) -> list[str]:
        """As `kubectl rollout` takes them: deployment.apps/baton-gateway."""
        label = f"app.kubernetes.io/component={component}"
        return self.kubectl("get", "deploy,statefulset", "-l", label, "-o", "name").split()

    def roll(self, component: str) -> None:
        """Restart all pods of a component and wait until the new ones are ready."""
        for workload in self.workloads(component):
            self.kubectl("rollout", "restart", workload)
            self._watch(workload)

    def renew(self, component: str) -> None:
        """Replace all pods of a component at once, and wait for the new ones."""
        label = f"app.kubernetes.io/component={component}"
        self.kubectl("delete", "pods", "-l", label, "--wait")
        self.wait_until_whole()

    def is_whole(self) -> bool:
        """Every pod is ready, and none is leaving."""
        items = self.get("pods", "-l", "app.kubernetes.io/name=baton")["items"]
        return bool(items) and all(
            "deletionTimestamp" not in pod["metadata"] and _is_ready(pod)
            for pod in items
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] not in ("test", "download")
        )

    def wait_until_whole(self) -> None:
        """Watched first: to ask again and again takes a tenth of two CPUs from pods that start."""
        label = "app.kubernetes.io/name=baton"
        found = self.kubectl("get", "deploy,statefulset", "-l", label, "-o", "name").split()
        for workload in found:
            self._watch(workload)
        wait_until(self.is_whole, f"every pod of {self.name} is ready", COMMAND_TIMEOUT_S)

    def _watch(self, workload: str) -> None:
        """Until its pods are new and ready."""
        self.kubectl("rollout", "status", workload, f"--timeout={COMMAND_TIMEOUT_S - 5}s")

    def containers(self, *pods: str) -> list[str]:
        """The ids of these pods' containers, for `kill`."""
        return [_container_id(self.get("pod", pod)) for pod in pods]

    def address(self, pod: str) -> str:
        address: str = self.get("pod", pod)["status"]["podIP"]
        return address


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _container_id(pod: dict[str, Any]) -> str:
    identifier: str = pod["status"]["containerStatuses"][0]["containerID"]
    return identifier.partition("://")[2]


def kill(containers: list[str]) -> None:
    """End the processes of these containers by SIGKILL, as the kernel does when memory is short."""
    kills = (shlex.join([*CTR, "tasks", "kill", "-s", "9", found]) for found in containers)
    on_node("sh", "-c", "; ".join(kills))


@contextmanager
def dropped(*rules: str) -> Iterator[None]:
    """Packets that match these rules vanish on the node, without a reset: "FORWARD -s 10.0.0.1"."""
    added: list[str] = []
    try:
        for rule in rules:
            on_node("iptables", "-w", "-I", *shlex.split(rule), "-j", "DROP")
            added.append(rule)
        yield
    finally:
        for rule in added:
            on_node("iptables", "-w", "-D", *shlex.split(rule), "-j", "DROP")
