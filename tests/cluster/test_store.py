"""A model from a store of objects: the Job, its claim, and the pools behind it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.release import MODEL, Release, image
from tests.kit.kube.real_cluster import RESTRICTED, RESTRICTED_POD, wait_until
from tests.kit.object_store import KEY_ID, SECRET

KIT = Path(__file__).parents[1] / "kit"
FILES = ("object_store.py", "memory_server.py")
NAME = "store"
PORT = 9000
# The store of the tests, with the demo model of the image in its bucket.
PROGRAM = f"""
import pathlib, threading
from tests.kit.object_store import ObjectStore

class Served(ObjectStore):
    address = ("", {PORT})

folder = pathlib.Path("/app/baton/demo_model")
files = [path for path in folder.rglob("*") if path.is_file()]
Served({{f"demo/{{path.relative_to(folder)}}": path.read_bytes() for path in files}})
threading.Event().wait()
"""
VALUES = {
    "models": {MODEL: {"source": {"demo": None, "store": {"url": "s3://models/demo"}}}},
    "hub": {
        "env": {
            "AWS_ENDPOINT_URL": f"http://{NAME}:{PORT}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": {"secretKeyRef": {"name": NAME, "key": "secret"}},
        }
    },
    "storage": {"default": {"accessMode": "ReadWriteOnce"}},
}


def store(namespace: str) -> Iterator[dict[str, Any]]:
    """The store as a pod, a Service for it, and the Secret of those who read it."""
    labels = {"app": NAME}
    metadata = {"name": NAME, "namespace": namespace, "labels": labels}
    files = {name: (KIT / name).read_text() for name in FILES}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    yield {**secret, "stringData": {"secret": SECRET}}
    container = {
        "name": NAME,
        "image": image("worker"),
        "command": ["python", "-c", PROGRAM],
        "env": [{"name": "PYTHONPATH", "value": "/kit"}],
        "securityContext": RESTRICTED,
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "kit", "mountPath": "/kit/tests/kit"}],
    }
    spec = {
        "securityContext": RESTRICTED_POD,
        "containers": [container],
        "volumes": [{"name": "kit", "configMap": {"name": NAME}}],
    }
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    service = {"selector": labels, "ports": [{"port": PORT}]}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service}


@pytest.fixture
def stored(release: Release, tmp_path: Path) -> Iterator[Path]:
    """The values with which the release has its model from a store, which serves."""
    namespace = release.namespace
    namespace.apply(*store(namespace.name))

    def is_ready() -> bool:
        conditions = namespace.get("pod", NAME)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    wait_until(is_ready, "the store serves")
    values = tmp_path / "values.json"
    values.write_text(json.dumps(VALUES))
    yield values
    release.upgrade()
    namespace.kubectl("delete", "pod,service,secret,configmap", NAME)


def test_no_client_notices_that_a_model_comes_from_a_store_of_objects(
    release: Release, stored: Path
) -> None:
    namespace = release.namespace
    release.case(
        "a model from a store of objects instead of the image",
        lambda: release.upgrade("-f", str(stored)),
    )
    [job] = namespace.get("jobs", "-l", "app.kubernetes.io/component=download")["items"]
    assert job["status"].get("succeeded") == 1
    for component in ("decode", "prefill"):
        spec = namespace.get("pod", namespace.pods(component)[0])["spec"]
        claims = [one.get("persistentVolumeClaim", {}).get("claimName") for one in spec["volumes"]]
        assert job["metadata"]["name"].rpartition("-")[0] in claims
