"""A release of the chart in a namespace of its own, and the cases that its clients live through."""

import base64
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.table import Row
from tests.kit.kube.cluster_load import Load, Outcome, Way, never, num_wrong, right_texts, told
from tests.kit.kube.real_cluster import Namespace, on_node, run

CHART = Path(__file__).parents[2] / "deploy/helm/baton"
SERVICES = ("gateway", "quota", "tokenizer", "router", "edge", "envoy", "worker")
MODEL = "baton-demo"
# Beyond the slowest undisturbed answer.
MAX_LATER_S = 6.0
NUM_VOLUMES = 6


def registry() -> str:
    return os.environ.get("REGISTRY", "localhost")


def tag() -> str:
    version: str = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return os.environ.get("TAG", version)


def image(service: str) -> str:
    return f"{registry()}/baton-{service}:{tag()}"


class Release:
    """`helm install baton`, and streams through its way in."""

    def __init__(self, namespace: str, name: str = "baton") -> None:
        self.namespace = Namespace(namespace)
        self.name = name
        self.fullname = name if "baton" in name else f"{name}-baton"
        self.rows: list[Row] = []
        self._right: dict[int, str] = {}
        self._undisturbed_s = 0.0

    def prepare(self) -> None:
        """An empty namespace, with volumes where the cluster makes none by itself."""
        # A volume of an earlier run stays bound to its claim of then.
        self.forget()
        self.namespace.create()
        classes = run("kubectl", "get", "storageclass", "-o", "name").split()
        if not classes:
            self.namespace.apply(*(self._volume(number) for number in range(NUM_VOLUMES)))

    def is_there(self) -> bool:
        return self.name in run("helm", "-n", self.namespace.name, "list", "-q").split()

    def forget(self) -> None:
        self.namespace.delete()
        names = [f"{self.namespace.name}-{number}" for number in range(NUM_VOLUMES)]
        run("kubectl", "delete", "persistentvolume", "--ignore-not-found", *names)

    def install(self, *values: str) -> float:
        """Install with these arguments of Helm; returns the seconds until every pod is ready."""
        began_s = time.monotonic()
        self.namespace.helm("install", self.name, str(CHART), *self.images(), *values)
        self.namespace.wait_until_whole()
        return time.monotonic() - began_s

    def upgrade(self, *values: str) -> None:
        """With the values of the chart and these; waits for all new pods."""
        options = ("--reset-values", *self.images(), *values, "--wait", "--timeout=10m")
        self.namespace.helm("upgrade", self.name, str(CHART), *options)

    def api_key(self) -> str:
        secret = self.namespace.get("secret", f"{self.fullname}-auth")
        return base64.b64decode(secret["data"]["api-key"]).decode()

    def way(self, model: str = MODEL) -> Way:
        component = "envoy" if self.namespace.workloads("envoy") else "gateway"
        # Its address, for clients that go on while nobody resolves names.
        spec = self.namespace.get("service", f"{self.fullname}-{component}")["spec"]
        address = f"{spec['clusterIP']}:{spec['ports'][0]['port']}"
        return Way(f"http://{address}/v1", self.api_key(), model, image("gateway"))

    def learn(self, name: str = "undisturbed") -> None:
        """Find out what is answered, and how soon, when nothing happens."""
        load = Load(self.namespace, self.way())
        load.start()
        load.wait_for(24)
        outcomes = load.stop()
        self._right = right_texts(outcomes)
        self._undisturbed_s = max(outcome.seconds for outcome in outcomes)
        self.rows.append(self._row(name, 1, outcomes))

    def case(
        self,
        name: str,
        fault: Callable[[], Any],
        times: int = 1,
        may_fail: Callable[[str], bool] = never,
        away_s: float = 0.0,
    ) -> None:
        """Let something happen under streams, so many times; asserts that no client noticed.

        `may_fail`: the errors of a fault that ends or delays clients' own connections, until the
        cluster sees it.
        `away_s`: for so long nobody can answer, whatever Baton does.
        """
        outcomes: list[Outcome] = []
        load = Load(self.namespace, self.way())
        for _ in range(times):
            self.namespace.wait_until_whole()
            load.start()
            fault()
            load.wait_for()
            outcomes += load.stop()
        row = self._row(name, times, outcomes)
        self.rows.append(row)
        assert (told(outcomes, may_fail), row.wrong) == (Counter(), 0)
        worst_s = max(outcome.seconds for outcome in outcomes)
        assert may_fail is not never or worst_s <= self._undisturbed_s + away_s + MAX_LATER_S

    def images(self) -> tuple[str, ...]:
        """The options of Helm that name the images under test, and what this cluster needs."""
        names = ("--set", f"image.registry={registry()}", "--set-string", f"image.tag={tag()}")
        return (*names, *shlex.split(os.environ.get("VALUES", "")))

    def _row(self, name: str, times: int, outcomes: list[Outcome]) -> Row:
        worst = max(outcome.seconds for outcome in outcomes)
        num_failed = sum(bool(outcome.error) for outcome in outcomes)
        wrong = num_wrong(outcomes, self._right)
        return Row(name, times, len(outcomes), num_failed, wrong, f"{worst:.1f} s")

    def _volume(self, number: int) -> dict[str, Any]:
        """A folder of the node, for clusters without a storage class."""
        name = f"{self.namespace.name}-{number}"
        folder = f"/var/lib/{name}"
        on_node("install", "-d", "-o", "10001", "-g", "10001", folder)
        spec = {
            "capacity": {"storage": "8Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": folder},
        }
        metadata = {"name": name}
        kind = {"apiVersion": "v1", "kind": "PersistentVolume"}
        return {**kind, "metadata": metadata, "spec": spec}
