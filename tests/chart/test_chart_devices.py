"""What follows from the devices of a pool: image, resources, rights, transports and memory."""

from typing import Any

import pytest
import yaml

from baton.cli.sizing.machines import ACCELERATORS, Machines, Traffic
from baton.cli.sizing.plan import Plan
from baton.cli.sizing.values import Deployment, values_yaml
from baton.cli.sizing.worker import Rates, Weights, Worker
from tests.chart.rendered import (
    PROFILES,
    Object,
    chart,
    environment,
    of_component,
    pod_of,
    profile,
    render,
)


def worker(name: str) -> tuple[Object, dict[str, str]]:
    """The container of a profile's decode workers, and what it is told."""
    (workload,) = of_component(profile(name), "decode")
    (container,) = pod_of(workload)["spec"]["containers"]
    return container, environment(workload)


@pytest.mark.parametrize(
    ("name", "resource", "count"),
    [
        ("gpu-node", "nvidia.com/gpu", "1"),
        ("mig", "nvidia.com/mig-3g.40gb", "1"),
        ("qwen3-32b", "nvidia.com/gpu", "2"),
        ("llama-70b", "nvidia.com/gpu", "4"),
    ],
)
def test_an_accelerator_is_a_device_for_each_rank(name: str, resource: str, count: str) -> None:
    container, env = worker(name)
    assert container["resources"]["limits"][resource] == count
    assert env["BATON_WORKER_DEVICE"] == "cuda"
    assert env.get("BATON_WORKER_TENSOR_PARALLEL", "1") == count
    engine = "-vllm" if env.get("BATON_WORKER_ENGINE") == "vllm" else ""
    assert f"/baton-worker{engine}-cuda:" in container["image"]


@pytest.mark.parametrize(
    ("name", "memory", "shared"),
    # The staging ring, 8 GiB for processes, and /dev/shm.
    [("gpu-node", "10Gi", "256Mi"), ("mig", "14Gi", "256Mi"), ("qwen3-32b", "26Gi", "2Gi")],
)
def test_host_memory_follows_from_gpus_and_is_the_pods_own(
    name: str, memory: str, shared: str
) -> None:
    container, _ = worker(name)
    resources = container["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == memory
    (workload,) = of_component(profile(name), "decode")
    (volume,) = [each for each in pod_of(workload)["spec"]["volumes"] if each["name"] == "shm"]
    assert volume["emptyDir"]["sizeLimit"] == shared


def test_a_worker_is_told_how_large_the_ring_is_that_was_counted() -> None:
    _, env = worker("qwen3-32b")
    assert env["BATON_WORKER_STAGING_MEMORY"] == "16384MiB"


def test_rdma_is_a_device_a_right_a_network_and_a_transport() -> None:
    container, env = worker("h100-rdma")
    assert container["resources"]["limits"]["rdma/ib"] == "1"
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert env["BATON_WORKER_TRANSPORTS"] == "nixl,grpc"
    assert env["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_1:1"
    (workload,) = of_component(profile("h100-rdma"), "decode")
    networks = pod_of(workload)["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
    assert networks == "infiniband"


def test_a_worker_with_vllm_has_its_image_time_to_compile_and_room_for_it() -> None:
    pool = {
        "settings": {"engine": "vllm"},
        "parallelism": {"tensor": 2, "expert": True},
        "compileCache": {"claim": "compiled"},
    }
    objects = render({"poolDefaults": pool})
    for workload in of_component(objects, "prefill", "decode"):
        spec = pod_of(workload)["spec"]
        (container,) = spec["containers"]
        env = environment(workload)
        assert "/baton-worker-vllm:" in container["image"]
        assert env["BATON_WORKER_TENSOR_PARALLEL"] == "2"
        assert env["BATON_WORKER_EXPERT_PARALLEL"] == "on"
        # The image names the interpreter that has vLLM.
        assert "BATON_WORKER_ENGINE_PYTHON" not in env
        probe = container["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] > 600
        assert int(env["BATON_WORKER_LOAD_TIMEOUT_S"]) > 600
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        cache = volumes[mounts["/var/cache/baton"]]
        assert cache["persistentVolumeClaim"]["claimName"] == "compiled"
        shared = volumes[mounts["/dev/shm"]]["emptyDir"]
        assert shared == {"medium": "Memory", "sizeLimit": "2Gi"}


def test_what_vllm_compiles_is_kept_in_the_pod_without_a_claim() -> None:
    objects = render({"poolDefaults": {"settings": {"engine": "vllm"}}})
    (workload,) = of_component(objects, "decode")
    volumes = {volume["name"]: volume for volume in pod_of(workload)["spec"]["volumes"]}
    assert volumes["compiled"]["emptyDir"] == {"sizeLimit": "4Gi"}
    (plain,) = of_component(render({}), "decode")
    assert "compiled" not in {volume["name"] for volume in pod_of(plain)["spec"]["volumes"]}


def test_a_device_may_come_from_a_resource_claim() -> None:
    pool = {
        "accelerator": {"claim": "gpu"},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-h100"}],
        "gpuMemoryGiB": 80,
        # A read-only root may be asked for all the same.
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    objects = render({"poolDefaults": pool})
    for workload in of_component(objects, "prefill", "decode"):
        (container,) = pod_of(workload)["spec"]["containers"]
        assert container["resources"]["claims"] == [{"name": "gpu"}]
        assert set(container["resources"]["limits"]) == {"memory"}
        assert environment(workload)["BATON_WORKER_DEVICE"] == "cuda"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def notes(values: dict[str, Any]) -> str:
    rendered = chart().render(values, name="baton", namespace="llm")
    return rendered["baton/templates/NOTES.txt"]


def test_notes_warn_of_gpus_that_hand_over_by_grpc_and_of_a_revision_that_moves() -> None:
    files = {"source": {"hub": {"repository": "o/m"}}, "sizeGiB": 15}
    told = notes({**PROFILES["gpu-node"], "models": {"baton-demo": None, "m": files}})
    assert "models.m.decode: KV blocks go from GPU to GPU by gRPC" in told
    assert "models.m: hub.revision is no commit" in told
    assert "models.m: without kvBytesPerToken and maxModelLen" in told
    assert "Perhaps not meant" not in notes(PROFILES["h100-rdma"])
    assert "models.llama-70b.decode: rdma.devices is empty" in notes(PROFILES["llama-70b"])


def test_notes_tell_of_vllm_on_gpus_what_it_needs_and_nothing_on_cpus() -> None:
    told = notes(PROFILES["qwen3-32b"])
    for role in ("prefill", "decode"):
        where = f"models.Qwen/Qwen3-32B.{role}"
        assert f'{where}: vLLM\'s engine starts on GPUs only with settings.unproven: "on"' in told
        assert f"{where}: releases do not build baton-worker-vllm-cuda" in told
    assert "IMAGES=worker-vllm-cuda" in told
    on_cpus = notes({"poolDefaults": {"settings": {"engine": "vllm"}}})
    assert "vLLM" not in on_cpus
    pool = dict(PROFILES["qwen3-32b"]["poolDefaults"])
    pool["settings"] = {**pool["settings"], "unproven": "on"}
    pool["image"] = {"repository": "host/team/worker", "tag": "1"}
    chosen = {**PROFILES["qwen3-32b"], "poolDefaults": pool}
    assert "never ran on a GPU" in notes(chosen)
    assert "starts on GPUs only" not in notes(chosen)
    assert "releases do not build" not in notes(chosen)
    (worker,) = of_component(render(chosen), "decode")
    assert environment(worker)["BATON_WORKER_UNPROVEN"] == "on"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_baton_size_prints_is_a_release(num_ranks: int) -> None:
    h100 = ACCELERATORS["h100"]
    weights = Weights(16_060_000_000, 15e9, 524_288)
    worker = Worker(weights, 2**30, 131_072, 450_000, num_ranks, 64, 32_768)
    plan = Plan(worker, Rates(h100), Traffic(5, 3000, 300), Machines(h100, 8), 1, 3)
    engine, rdma = ("baton", None) if num_ranks == 1 else ("vllm", "rdma/ib")
    values = "\n".join(values_yaml(plan, Deployment("org/model-8b", engine, 0.9, rdma)))
    pools = of_component(render(yaml.safe_load(values)), "prefill", "decode")
    assert sorted(pool["spec"]["replicas"] for pool in pools) == [1, 3]
    for pool in pools:
        (container,) = pod_of(pool)["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(num_ranks)
        assert container["resources"]["limits"].get("rdma/ib") == (rdma and "1")
        assert environment(pool)["BATON_WORKER_MAX_MODEL_LEN"] == "32768"
