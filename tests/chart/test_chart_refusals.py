"""What cannot work is refused with a sentence that says what to do."""

from typing import Any

import helm_python as helm
import pytest

from tests.chart.rendered import PROFILES, chart, install
from tests.kit.kube.kube_resources import CORE

GPU = {"resource": "nvidia.com/gpu"}
SMALL = {"limits": {"memory": "2Gi"}}
SENTINELS = {"enabled": False, "url": "redis+sentinel://a/mymaster/0"}
DEMO = {"source": {"demo": True}, "sizeGiB": 0.01}


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
    "inline key of a store": (
        {"hub": {"env": {"AWS_SECRET_ACCESS_KEY": "x"}}},
        "hub.env.AWS_SECRET_ACCESS_KEY: secrets are never values",
    ),
    "inline key of an Azure account": (
        {"hub": {"env": {"AZURE_STORAGE_SAS_TOKEN": "x"}}},
        "hub.env.AZURE_STORAGE_SAS_TOKEN: secrets are never values",
    ),
    "a folder of no store": (
        {"models": models(m={"sizeGiB": 1, "source": {"store": {"url": "s3://bucket"}}})},
        "does not match pattern",
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
    "Sentinels' password without Sentinels": (
        {"redis": {"enabled": False, "url": "redis://redis:6379", "sentinelPasswordKey": "s"}},
        "sentinelPasswordKey is for redis.sentinel://",
    ),
    "Sentinels' password without a Secret": (
        {"redis": {**SENTINELS, "sentinelPasswordKey": "password"}},
        "sentinelPasswordKey names a key of redis.existingSecret",
    ),
    "no decode worker": (model(replicas=0), "without a decode worker nothing"),
    "two models of one name": (
        {"models": models(m={"sizeGiB": 0.01}, M={"sizeGiB": 0.01})},
        'would be called "m" in the cluster like another one',
    ),
    "weights above the memory": (
        model(size_gib=7, resources=SMALL),
        "need 7.5 GiB, but resources.limits.memory is 2.0 GiB",
    ),
    "pool above the memory": (
        model(settings={"kv_memory": "4GiB"}, resources=SMALL),
        "need 4.5 GiB, but resources.limits.memory is 2.0 GiB",
    ),
    "weights above the GPU": (
        model(size_gib=60, gpuMemoryGiB=24, accelerator=GPU),
        "need 60.0 GiB, but 80 % of a GPU with 24 GiB are 19.2 GiB",
    ),
    "GPUs as a resource": (
        model(resources={"limits": {"nvidia.com/mig-3g.40gb": 1}}),
        "mig-3g.40gb looks like an accelerator; say accelerator:",
    ),
    "a GPU of another maker": (
        model(accelerator={"resource": "amd.com/gpu"}),
        "amd.com/gpu is not served: Baton computes on NVIDIA's GPUs",
    ),
    "two GPUs for one rank": (
        model(accelerator={**GPU, "count": 2}, gpuMemoryGiB=80),
        "count is 2, but parallelism.tensor is 1",
    ),
    "several ranks of Baton's engine": (
        model(accelerator=GPU, gpuMemoryGiB=80, parallelism={"tensor": 2}),
        "more are for settings.engine: vllm",
    ),
    "experts for one rank": (
        model(parallelism={"tensor": 1, "expert": True}, settings={"engine": "vllm"}),
        "the experts are divided among ranks, and parallelism.tensor is 1",
    ),
    "slices as ranks": (
        model(
            accelerator={"resource": "nvidia.com/mig-3g.40gb"},
            gpuMemoryGiB=40,
            parallelism={"tensor": 2},
            settings={"engine": "vllm"},
        ),
        "do not work together",
    ),
    "a gateway that asks for too little to be scaled": (
        {"gateway": {"autoscaling": {"enabled": True}}},
        "and 100m is passed by any load.*say 500m or more",
    ),
    "two servers of external metrics": (
        {
            "models": models(
                m={
                    "sizeGiB": 0.01,
                    "prefill": {"replicas": 1, "autoscaling": {"mode": "hpa"}},
                    "decode": {"autoscaling": {"mode": "keda"}},
                }
            )
        },
        "a cluster has one server of external metrics",
    ),
    "half of a worker away": (model(maxUnavailable="0%"), "/maxUnavailable"),
    "a claim that is not there": (
        model(accelerator={"claim": "gpu"}, gpuMemoryGiB=80),
        'there is no "gpu" in resourceClaims',
    ),
    "unknown host memory": (model(accelerator=GPU), "say gpuMemoryGiB, from which the host"),
    "little host memory": (
        model(accelerator=GPU, gpuMemoryGiB=80, resources={"limits": {"memory": "16Gi"}}),
        "need 25 GiB of host memory, but resources.limits.memory is 16.0 GiB",
    ),
    "host memory that is shared": (
        model(
            accelerator=GPU,
            gpuMemoryGiB=80,
            resources={"requests": {"memory": "8Gi"}, "limits": {"memory": "96Gi"}},
        ),
        "the host memory of a GPU worker is pinned",
    ),
    "the demo model on GPUs beside another one": (
        {"models": {"m": DEMO}, "poolDefaults": {"accelerator": GPU, "gpuMemoryGiB": 24}},
        "leave it out with models.baton-demo: null",
    ),
    "a transport that is none": (
        model(settings={"transports": "nixl-device,grpc"}),
        "'/models/m/decode/settings/transports'",
    ),
    "RDMA without NIXL": (
        model(rdma={"resource": "rdma/ib"}, settings={"transports": "grpc"}),
        "rdma is for NIXL, which settings.transports .grpc. leaves out",
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
    "route to an Envoy that speaks TLS": (
        {
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]},
            "envoy": {"tlsSecret": "certificate"},
        },
        "the Gateway ends the clients' TLS",
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
        install(PROFILES[name], CORE)
