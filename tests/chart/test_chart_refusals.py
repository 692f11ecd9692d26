"""What cannot work is refused with a sentence that says what to do."""

from typing import Any

import helm_python as helm
import pytest

from tests.chart.rendered import PROFILES, chart, render
from tests.kit.kube.kube_resources import CORE


def model(size_gib: float = 0.01, **pool: Any) -> dict[str, Any]:
    """The values of a release with one model."""
    return {"models": models(m={"decode": pool, "sizeGiB": size_gib})}


def models(**named: Any) -> dict[str, Any]:
    """Of the demo model's files."""
    return {
        "baton-demo": None,
        **{name: {"source": {"demo": True}, **one} for name, one in named.items()},
    }


REFUSED = {
    "typo": ({"gatway": {}}, "additional properties 'gatway' not allowed"),
    "typo inside": ({"gateway": {"replcas": 2}}, "additional properties 'replcas' not allowed"),
    "typo of a setting": (
        {"gateway": {"settings": {"max_open_request": 1}}},
        "additional properties 'max_open_request' not allowed",
    ),
    "typo in a model": ({"models": models(m={"sizeGib": 1})}, "'sizeGib' not allowed"),
    "negative replicas": ({"router": {"replicas": -1}}, "minimum: got -1, want 1"),
    "negative pool": (model(replicas=-2), "minimum: got -2, want 0"),
    "no model": ({"models": {"baton-demo": None}}, "models: none is left"),
    "no model that is enabled": (
        {"models": {"baton-demo": {"enabled": False}}},
        "models: none is left",
    ),
    "a list of models": (
        {"models": [{"name": "m", "source": {"demo": True}, "sizeGiB": 1}]},
        "models is a map by name now: models: {llama-8b: {source",
    ),
    "latest": ({"image": {"tag": "latest"}}, "'/image/tag'"),
    "two sources": (
        {"models": models(m={"sizeGiB": 1, "source": {"demo": True, "volume": {"claim": "c"}}})},
        "maxProperties: got 2, want 1",
    ),
    "inline key": ({"auth": {"apiKey": "bt-1"}}, "secrets are never values.*auth.existingSecret"),
    "inline hub token": (
        {"hub": {"token": "hf_x"}},
        "secrets are never values.*hub.existingSecret",
    ),
    "inline password": (
        {"redis": {"password": "x"}},
        "secrets are never values.*redis.existingSecret",
    ),
    "inline headers": (
        {"tracing": {"endpoint": "http://c:4317", "headers": "x-token=x"}},
        "secrets are never values.*tracing.headersSecret",
    ),
    "password in a URL": (
        {"redis": {"enabled": False, "url": "redis://:x@redis:6379/0"}},
        "redis.url holds a user or password",
    ),
    "no Redis": ({"redis": {"enabled": False}}, "say where your Redis is in redis.url"),
    "two Redis": ({"redis": {"url": "redis://redis:6379"}}, "set redis.enabled: false"),
    "no decode worker": (model(replicas=0), "without a decode worker nothing"),
    "two models of one name": (
        {"models": models(m={"sizeGiB": 0.01}, M={"sizeGiB": 0.01})},
        'would be called "m" in the cluster like another one',
    ),
    "weights above the memory": (
        model(size_gib=7),
        "need 7.5 GiB, but resources.limits.memory is 2.0 GiB",
    ),
    "pool above the memory": (
        model(settings={"kv_memory": "4GiB"}),
        "need 4.5 GiB, but resources.limits.memory is 2.0 GiB",
    ),
    "weights above the GPU": (
        {
            **model(
                size_gib=60,
                gpuMemoryGiB=24,
                resources={
                    "requests": {"memory": "8Gi"},
                    "limits": {"memory": "8Gi", "nvidia.com/gpu": 1},
                },
            ),
            "poolDefaults": {"resources": {"limits": {"memory": "64Gi"}}},
        },
        "need 60.0 GiB, but 80 % of a GPU with 24 GiB are 19.2 GiB",
    ),
    "two GPUs": (
        model(
            resources={
                "requests": {"memory": "8Gi"},
                "limits": {"memory": "8Gi", "nvidia.com/gpu": 2},
            }
        ),
        "a worker uses one GPU",
    ),
    "no memory limit": (
        model(resources={"requests": {"memory": "1Gi"}}),
        "a worker needs a memory request and limit",
    ),
    "unknown storage": (model(storage="fast"), "there is no storage.fast"),
    "short grace period": (
        {"terminationGracePeriodSeconds": 60},
        "terminationGracePeriodSeconds is 60, but baton-.* needs 1[0-9]+: preStop, drain and 10 s",
    ),
    "certificates without a name": (
        {"tls": {"mode": "existingSecret"}},
        "name it in tls.existingSecret",
    ),
    "route past Envoy": (
        {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
        "set envoy.enabled: false",
    ),
    "route from nowhere": (
        {"envoy": {"enabled": False}, "httpRoute": {"enabled": True}},
        "name the Gateway in httpRoute.parentRefs",
    ),
    "bounds of a scaler": (
        {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 2}}},
        "minReplicas is above maxReplicas",
    ),
    "authorities without TLS": (
        {"tracing": {"endpoint": "http://collector:4317", "caSecret": "ca"}},
        "tracing.caSecret is for an https:// tracing.endpoint only",
    ),
    "headers for the bundled Jaeger": (
        {"tracing": {"headersSecret": "token"}},
        "tracing.headersSecret is for a tracing.endpoint of your own",
    ),
    "no cert-manager": ({"tls": {"mode": "certManager"}}, "which this cluster does not have"),
}


@pytest.mark.parametrize(("values", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(helm.HelmError, match=sentence):
        chart().render(values, name="baton", namespace="serving")


@pytest.mark.parametrize(
    ("name", "missing"),
    [("gateway-api", "gateway.networking.k8s.io/v1"), ("h100-pools", "cert-manager.io/v1")],
)
def test_cluster_without_the_custom_resources_is_told_so(name: str, missing: str) -> None:
    with pytest.raises(helm.HelmError, match=f"custom resources of {missing}"):
        render(PROFILES[name], CORE)
