"""Streams that a pod of the cluster asks for while something happens, and what came of them."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kit.kube.real_cluster import (
    RESTRICTED,
    RESTRICTED_POD,
    CommandError,
    Namespace,
    wait_until,
)

PROGRAM = Path(__file__).with_name("stream_for_ever.py")
NUM_STREAMS = 4
# Before anything happens, each question has been answered.
NUM_BEFORE = 8
# And after it, each stream has ended and another one, too.
NUM_AFTER = 8


@dataclass(frozen=True)
class Outcome:
    """One answer, as the client printed it."""

    question: int
    seconds: float
    pause: float
    digest: str
    error: str


@dataclass(frozen=True)
class Way:
    """The way in, the key and the model that a client asks for."""

    base_url: str
    api_key: str
    model: str
    image: str


class Load:
    """Streams from a pod of its own, from `start` to `stop`."""

    def __init__(self, namespace: Namespace, way: Way) -> None:
        self._namespace = namespace
        self._way = way
        self._pod = ""
        self._numbers = itertools.count()

    def start(self) -> None:
        """Returns when streams have been answered."""
        self._pod = f"load-{next(self._numbers)}"
        script = {"stream_for_ever.py": PROGRAM.read_text()}
        self._namespace.kubectl("delete", "pod,configmap", self._pod, "--ignore-not-found")
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._metadata()}
        self._namespace.apply({**config, "data": script}, self._manifest())
        self.wait_for(NUM_BEFORE)

    def wait_for(self, num_more: int = NUM_AFTER) -> None:
        """Returns when so many more have ended."""
        wanted = len(self.outcomes()) + num_more
        wait_until(lambda: len(self.outcomes()) >= wanted, f"{num_more} more answers")

    def outcomes(self) -> list[Outcome]:
        try:
            lines = self._namespace.kubectl("logs", self._pod).splitlines()
        except CommandError:
            return []  # the container has not started
        return [Outcome(**json.loads(line)) for line in lines]

    def stop(self) -> list[Outcome]:
        """All answers; those that were open have ended."""
        self._namespace.kubectl("exec", self._pod, "--", "touch", "/tmp/stop")
        self._namespace.kubectl(
            "wait", f"pod/{self._pod}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s"
        )
        outcomes = self.outcomes()
        self._namespace.kubectl("delete", "pod,configmap", self._pod, "--wait=false")
        return outcomes

    def _metadata(self) -> dict[str, object]:
        return {"name": self._pod, "namespace": self._namespace.name}

    def _manifest(self) -> dict[str, object]:
        environment = {
            "BASE_URL": self._way.base_url,
            "API_KEY": self._way.api_key,
            "MODEL": self._way.model,
            "NUM_STREAMS": str(NUM_STREAMS),
        }
        container = {
            "name": "load",
            "image": self._way.image,
            "command": ["python", "/load/stream_for_ever.py"],
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "securityContext": RESTRICTED,
            "volumeMounts": [{"name": "load", "mountPath": "/load"}],
        }
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": RESTRICTED_POD,
            "containers": [container],
            "volumes": [{"name": "load", "configMap": {"name": self._pod}}],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": self._metadata(), "spec": spec}


def num_wrong(outcomes: list[Outcome], right: dict[int, str]) -> int:
    """Answers whose text is not that of the undisturbed ones."""
    return sum(not o.error and o.digest != right[o.question] for o in outcomes)


def right_texts(outcomes: list[Outcome]) -> dict[int, str]:
    """By question, from streams that nothing disturbed. Raises AssertionError where they differ."""
    texts: dict[int, str] = {}
    for outcome in outcomes:
        assert outcome.error == "", outcome.error
        assert texts.setdefault(outcome.question, outcome.digest) == outcome.digest
    return texts


def never(error: str) -> bool:
    return False


def is_broken(error: str) -> bool:
    """It came as a broken connection, not as an answer."""
    return not error.startswith("ValueError")


def is_cut_off(error: str) -> bool:
    """It came so, or as the word of an Envoy that reaches no gateway."""
    return is_broken(error) or "no gateway can take this request now" in error


def told(outcomes: list[Outcome], may_fail: Callable[[str], bool] = never) -> Counter[str]:
    """Errors, by text, but those that may be."""
    failures = (outcome.error for outcome in outcomes if outcome.error)
    return Counter(text for text in failures if not may_fail(text))
