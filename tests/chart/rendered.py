"""Renders the chart with the real Helm library and finds things in what came out.

Profiles are installed once per session, on a stub API server that knows the custom resources of
common operators: `lookup` finds nothing there, and `.Capabilities` has them. Other values are
rendered as `helm template` does it, which asks no server and takes a quarter of the time, unless
they need those custom resources.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_resources import CORE, CUSTOM, Resource

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/baton"
PROFILES = {
    "default": {},
    **{
        path.stem.removesuffix("-values"): yaml.safe_load(path.read_text())
        for path in sorted((CHART / "ci").glob("*-values.yaml"))
    },
}
NAMESPACE = "default"
# How the chart refuses values that need custom resources.
NO_SUCH_KINDS = "which this cluster does not have"
SERVERS = ("Deployment", "StatefulSet")
# Given by Kubernetes.
POD_NAME = "statefulset.kubernetes.io/pod-name"
WORKLOADS = (*SERVERS, "Job", "Pod")
Object = dict[str, Any]


@cache
def chart() -> helm.Chart:
    return helm.Chart.load(CHART)


@contextmanager
def cluster(
    kinds: Sequence[Resource] = CORE + CUSTOM, react: Callable[[Object], Object] = lambda new: new
) -> Iterator[tuple[KubeApi, helm.Config]]:
    """An empty cluster, and Helm that is connected to it; releases are kept in memory."""
    with KubeApi(kinds, react=react) as api:
        config = helm.Config(
            namespace=NAMESPACE, storage_driver="memory", kubeconfig_content=api.kubeconfig()
        )
        with config:
            yield api, config


def render(values: Object) -> list[Object]:
    """All objects of a release called `baton`, test hooks too. Raises helm.HelmError."""
    try:
        made = chart().render(values, name="baton", namespace=NAMESPACE)
    except helm.HelmError as error:
        if NO_SUCH_KINDS in str(error):
            return install(values)
        raise
    return _read(text for path, text in made.items() if path.endswith(".yaml"))


def install(values: Object, kinds: Sequence[Resource] = CORE + CUSTOM) -> list[Object]:
    """As `render`, of a release that Helm has installed on a cluster with these kinds."""
    with cluster(kinds) as (_, config):
        manifest = config.install(chart(), "baton", values)["manifest"]
        hooks = [hook["manifest"] for hook in config.get_all("baton")["hooks"]]
    return _read((manifest, *hooks))


def _read(texts: Iterable[str]) -> list[Object]:
    # libyaml reads it ten times faster than Python does.
    read = [yaml.load_all(text, Loader=yaml.CSafeLoader) for text in texts]
    return [found for documents in read for found in documents if found]


@cache
def profile(name: str) -> list[Object]:
    """Do not change what is in it."""
    return install(PROFILES[name])


def of_kind_if_any(objects: list[Object], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """At least one: a rule about all of them must not hold because there is none."""
    found = of_kind_if_any(objects, *kinds)
    assert found, f"none of {', '.join(kinds)} was rendered"
    return found


def of_component(objects: list[Object], *components: str) -> list[Object]:
    """Workloads of these components, at least one of each."""
    found = [one for one in of_kind(objects, *WORKLOADS) if component(one) in components]
    assert {component(one) for one in found} == set(components)
    return found


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def generated_certificate(service: str, folder: Path) -> None:
    """Write the certificate that the chart makes for a service as its pods see it: by the items."""
    (workload,) = [
        one for one in of_kind(profile("default"), "Deployment", "StatefulSet")
        if component(one) == service
    ]  # fmt: skip
    volumes = pod_of(workload)["spec"]["volumes"]
    (secret,) = [volume["secret"] for volume in volumes if volume["name"] == "tls"]
    data = named(profile("default"), "Secret", secret["secretName"])["data"]
    for item in secret["items"]:
        (folder / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))


def pod_of(workload: Object) -> Object:
    """Its pod template; a Pod itself."""
    if workload["kind"] == "Pod":
        return workload
    template: Object = workload["spec"]["template"]
    return template


def containers(workload: Object) -> Iterator[Object]:
    spec = pod_of(workload)["spec"]
    yield from spec.get("initContainers") or []
    yield from spec["containers"]


def environment(workload: Object) -> dict[str, str]:
    """The plain variables of its first container."""
    entries = pod_of(workload)["spec"]["containers"][0].get("env") or []
    return {entry["name"]: entry.get("value", "") for entry in entries}


def component(found: Object) -> str:
    return str(found["metadata"]["labels"]["app.kubernetes.io/component"])


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def reaches(service: Object, workload: Object) -> bool:
    """True when a Service leads to a pod of the workload; those of a StatefulSet have labels of
    their names."""
    wanted, labels = dict(service["spec"]["selector"]), pod_of(workload)["metadata"]["labels"]
    if workload["kind"] == "StatefulSet" and POD_NAME in wanted:
        pods = range(workload["spec"]["replicas"])
        names = {f"{workload['metadata']['name']}-{number}" for number in pods}
        return wanted.pop(POD_NAME) in names and selects(wanted, labels)
    return selects(wanted, labels)
