"""A model that changes in place: the same name, another template, so another fingerprint."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.release import MODEL, Release, image
from tests.kit.kube.real_cluster import RESTRICTED, RESTRICTED_POD, wait_until

CLAIM = "changing"
FILLER = "fill-changing"
# A comment: other bytes, the same prompts, so the texts of both can be compared.
FILL = """
for folder in v1 v2; do
    mkdir -p /models/$folder && cp -r /app/baton/demo_model/. /models/$folder
done
cd /models
{ printf '{# the second one #}'; cat v1/chat_template.jinja; } >v2/chat_template.jinja
! cmp -s v1/chat_template.jinja v2/chat_template.jinja
"""


def values(folder: str) -> Iterator[str]:
    """The options of Helm that serve the demo model from a folder of the claim."""
    source = f"models.{MODEL}.source"
    for text in ("demo=null", f"volume.claim={CLAIM}", f"volume.path={folder}"):
        yield from ("--set", f"{source}.{text}")


def claim_and_filler(namespace: str) -> Iterator[dict[str, Any]]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"name": CLAIM, "namespace": namespace}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    yield {**kind, "metadata": metadata, "spec": spec}
    container = {
        "name": "fill",
        "image": image("worker"),
        "command": ["sh", "-ec", FILL],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": RESTRICTED_POD,
        "containers": [container],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": CLAIM}}],
    }
    metadata = {"name": FILLER, "namespace": namespace}
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def changing(release: Release) -> Iterator[Release]:
    """The release, whose model is the first of two folders."""
    namespace = release.namespace
    namespace.apply(*claim_and_filler(namespace.name))

    def is_filled() -> bool:
        phase = namespace.get("pod", FILLER)["status"].get("phase")
        assert phase != "Failed", namespace.kubectl("logs", FILLER)
        return bool(phase == "Succeeded")

    wait_until(is_filled, "two folders of the model", 300)
    release.upgrade(*values("v1"))
    yield release
    release.upgrade()
    namespace.kubectl("delete", "pod", FILLER)
    namespace.kubectl("delete", "pvc", CLAIM)


@pytest.mark.parametrize(
    ("order", "folder"),
    [("first", "v2"), ("last", "v1")],
    ids=["tokenizers first", "tokenizers last"],
)
def test_no_client_notices_a_model_that_changes_in_place(
    changing: Release, order: str, folder: str
) -> None:
    """Tokenizers that start before, or after, the pools have the other files."""

    def change() -> None:
        if order == "first":
            changing.namespace.roll("tokenizer")
        changing.upgrade(*values(folder))
        if order == "last":
            changing.namespace.roll("tokenizer")

    changing.case(f"a model changed in place, tokenizers {order}", change)
    for component in ("decode", "prefill"):
        pod = changing.namespace.get("pod", changing.namespace.pods(component)[0])
        env = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
        assert env["BATON_WORKER_MODEL"].endswith(f"/{folder}")
