"""Pods are shaped by one set of keys: for all of them, for a service, for a pool."""

from functools import cache
from typing import Any

import helm_python as helm
import pytest

from tests.chart.rendered import (
    SERVERS,
    WORKLOADS,
    Object,
    chart,
    component,
    containers,
    named,
    of_component,
    of_kind,
    pod_of,
    profile,
    render,
)
from tests.chart.test_chart_schemas import VERSIONS, Schemas

DIGEST = "sha256:" + "0" * 64
ZONES = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
NODES = [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]
AFFINITY = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": NODES}}
PLACE = {
    "nodeSelector": {"pool": "own"},
    "tolerations": [{"key": "own", "operator": "Exists"}],
    "affinity": AFFINITY,
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "priorityClassName": "high",
    "topologySpreadConstraints": [{**ZONES, "labelSelector": {"matchLabels": {"a": "b"}}}],
}
SHAPE: dict[str, Any] = {
    **PLACE,
    "annotations": {"sidecar.istio.io/inject": "false"},
    "labels": {"team": "inference"},
    "env": {"UCX_TLS": "rc", "LOG": 1.5, "KEY": {"secretKeyRef": {"name": "s", "key": "k"}}},
    "envFrom": [{"configMapRef": {"name": "more"}}],
    "serviceAccountName": "own",
    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": None},
    "podSecurityContext": {"fsGroup": 7, "runAsUser": None},
    "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic-of-node"}],
    "extraVolumes": [{"name": "huge", "emptyDir": {"medium": "HugePages"}}],
    "extraVolumeMounts": [{"name": "huge", "mountPath": "/huge"}],
}
PARTS = ("gateway", "quota", "tokenizer", "router", "envoy", "edge", "redis")


@cache
def shaped() -> list[Object]:
    """A release in which every service and every pool has all keys."""
    return render(
        {
            **dict.fromkeys(PARTS, SHAPE),
            "tracing": {"jaeger": SHAPE},
            "poolDefaults": {**SHAPE, "image": {"digest": DIGEST}},
            "pods": {"env": {"HTTPS_PROXY": "http://proxy:3128", "LOG": "2"}},
            "fullnameOverride": "serving",
            "extraObjects": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": "{{ .Release.Name }}-more",
                        "labels": {"app.kubernetes.io/component": "more"},
                    },
                }
            ],
        }
    )


@cache
def once() -> list[Object]:
    """A release with a download and a load test, whose shape is said for all pods."""
    image = {"image": {"digest": DIGEST}}
    files = {"source": {"hub": {"repository": "o/m"}}, "sizeGiB": 1}
    return render(
        {
            "pods": SHAPE,
            "models": {"baton-demo": None, "m": files},
            "hub": image,
            "loadtest": {"enabled": True, **image},
            "gateway": image,
        }
    )


def test_every_service_and_pool_has_the_keys_of_pods() -> None:
    servers = of_kind(shaped(), *SERVERS)
    assert {component(one) for one in servers} == {*PARTS, "jaeger", "prefill", "decode"}
    for workload in servers:
        pod = pod_of(workload)
        spec = pod["spec"]
        assert {key: spec[key] for key in PLACE} == PLACE
        assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"]["labels"]["team"] == "inference"
        assert "team" not in workload["spec"]["selector"]["matchLabels"]
        assert spec["serviceAccountName"] == "own"
        assert spec["resourceClaims"] == SHAPE["resourceClaims"]
        (container,) = spec["containers"]
        env = {entry["name"]: entry for entry in container["env"]}
        assert (env["UCX_TLS"]["value"], env["LOG"]["value"]) == ("rc", "1.5")
        assert env["HTTPS_PROXY"]["value"] == "http://proxy:3128"
        assert env["KEY"]["valueFrom"] == SHAPE["env"]["KEY"]
        assert container["envFrom"] == SHAPE["envFrom"]
        assert container["resources"]["claims"] == [{"name": "nic"}]
        assert SHAPE["extraVolumes"][0] in spec["volumes"]
        assert SHAPE["extraVolumeMounts"][0] in container["volumeMounts"]


def test_pods_that_run_once_have_what_all_have_but_for_variables_volumes_and_claims() -> None:
    for workload in of_component(once(), "download", "loadtest", "test"):
        pod = pod_of(workload)
        assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"]["labels"]["team"] == "inference"
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == component(workload)
        spec = pod["spec"]
        once_place = {key: PLACE[key] for key in PLACE if key != "topologySpreadConstraints"}
        assert {key: spec[key] for key in once_place} == once_place
        assert spec["serviceAccountName"] == "own"
        assert spec["securityContext"]["fsGroup"] == 7
        (container,) = spec["containers"]
        assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        assert "UCX_TLS" not in {entry["name"] for entry in container["env"]}
    (pod,) = of_component(once(), "test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_security_contexts_are_merged_and_null_is_left_to_the_platform() -> None:
    for workload in of_kind(shaped(), *SERVERS):
        spec = pod_of(workload)["spec"]
        assert spec["securityContext"]["fsGroup"] == 7
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert "runAsUser" not in spec["securityContext"]
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        }


def test_shaped_objects_fit_the_strict_schemas() -> None:
    newest = Schemas(VERSIONS[-1])
    assert [error for found in shaped() + once() for error in newest.errors(found)] == []


def test_rights_go_to_the_account_that_a_service_has() -> None:
    (binding,) = of_kind(shaped(), "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["own"]
    (binding,) = of_kind(profile("default"), "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["baton-watcher"]


def test_a_digest_pins_an_image_and_a_name_replaces_the_releases() -> None:
    for workload in of_component(shaped(), "prefill", "decode"):
        (container,) = containers(workload)
        assert container["image"] == f"ghcr.io/baton-serving/baton-worker@{DIGEST}"
    for workload in of_component(once(), "download", "loadtest", "test"):
        (container,) = containers(workload)
        assert container["image"].endswith(f"@{DIGEST}")
    assert named(shaped(), "ConfigMap", "baton-more")
    assert named(shaped(), "Deployment", "serving-gateway")


def test_openshift_chooses_users_and_its_dns_is_reached() -> None:
    objects = profile("openshift")
    for workload in of_kind(objects, *WORKLOADS):
        context = pod_of(workload)["spec"]["securityContext"]
        assert set(context) == {"runAsNonRoot", "seccompProfile"}
    policies = of_kind(objects, "NetworkPolicy")
    ports = [rule["ports"] for one in policies for rule in one["spec"].get("egress") or ()]
    dns = [{port["port"] for port in some} for some in ports if some[0]["port"] == 53]
    assert dns == [{53, 5353}] * (len(policies) - 1)


def test_variables_of_baton_are_settings() -> None:
    with pytest.raises(
        helm.HelmError, match=r"router\.env\.BATON_X: Baton's own variables are set"
    ):
        chart().render({"router": {"env": {"BATON_X": "1"}}}, name="baton", namespace="serving")
