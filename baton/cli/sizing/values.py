"""A plan as values of the Helm chart."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from baton.cli.sizing.machines import GIB
from baton.cli.sizing.plan import Plan
from baton.cli.sizing.worker import Worker

_UNPROVEN = """\
# vLLM's engine starts on GPUs only with settings.unproven: "on"; it never ran on one."""
_CPU_PER_RANK = 4  # cores asked for beside a GPU: front, core and its helpers


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the values need beside the plan."""

    name: str  # public name of the model, and its repository on the hub
    engine: str
    memory_share: float
    rdma_resource: str | None = None


def values_yaml(plan: Plan, deployment: Deployment) -> Iterator[str]:
    """The lines of a values.yaml."""
    worker = plan.worker
    if deployment.engine == "vllm" and plan.machines.device.is_gpu:
        yield _UNPROVEN
    yield "models:"
    yield "  baton-demo: null"
    yield f"  {json.dumps(deployment.name)}:"
    yield f"    source: {{hub: {{repository: {json.dumps(deployment.name)}}}}}"
    yield f"    sizeGiB: {_ceil(worker.weights.num_bytes / GIB, 2)}"
    yield f"    kvBytesPerToken: {worker.kv_bytes_per_token}"
    yield f"    maxModelLen: {worker.max_model_len}"
    for role, num_workers in (("prefill", plan.num_prefill), ("decode", plan.num_decode)):
        yield f"    {role}:"
        yield f"      replicas: {num_workers}"
        yield from (f"      {line}" for line in _pool(plan, deployment))
    if plan.num_prefill:
        yield "router: {settings: {disaggregate: auto}}"


def _pool(plan: Plan, deployment: Deployment) -> Iterator[str]:
    worker, device = plan.worker, plan.machines.device
    if not device.is_gpu:
        memory = f"{device.memory_gib:g}Gi"
        yield f"resources: {{requests: {{memory: {memory}}}, limits: {{memory: {memory}}}}}"
        yield from _activations(worker)
        yield f"settings: {_flow(_settings(plan, deployment))}"
        return
    num_ranks = worker.num_ranks
    yield "accelerator: {resource: nvidia.com/gpu}"
    if num_ranks > 1:
        yield f"parallelism: {{tensor: {num_ranks}}}"
    if deployment.rdma_resource:
        yield f"rdma: {{resource: {deployment.rdma_resource}, count: 1}}"
    yield f"gpuMemoryGiB: {device.memory_gib:g}"
    yield from _activations(worker)
    # The chart derives host memory and the number of GPUs.
    yield f"resources: {{requests: {{cpu: {_CPU_PER_RANK * num_ranks}}}}}"
    if plan.machines.num_devices is not None:
        yield "surge: false  # no GPU is spare for a rollout"
    yield f"settings: {_flow(_settings(plan, deployment))}"


def _activations(worker: Worker) -> Iterator[str]:
    """Of one rank."""
    yield f"activationGiB: {_ceil(worker.activation_bytes / worker.num_ranks / GIB, 2)}"


def _ceil(value: float, num_digits: int) -> float:
    """Rounded up: the chart must not find room that is not there."""
    factor: int = 10**num_digits
    return math.ceil(value * factor) / factor


def _settings(plan: Plan, deployment: Deployment) -> dict[str, object]:
    settings: dict[str, object] = {
        "memory_share": deployment.memory_share,
        "max_model_len": plan.worker.max_model_len,
        "max_batch": plan.worker.max_batch,
    }
    return settings if deployment.engine == "baton" else {"engine": deployment.engine} | settings


def _flow(entries: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in entries.items()) + "}"
