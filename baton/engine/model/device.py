"""Where a model runs, and the runner that runs it there.

On a GPU a model's need is measured: the weights are there already, and one largest step is run.
Triton is imported only for a GPU, so that a machine without one needs no wheel of it.
"""

import dataclasses
from typing import TYPE_CHECKING

import torch

from baton.engine.model.load import LoadedModel
from baton.engine.model.memory_need import LargestStep, MemoryNeed
from baton.engine.model.refusal import LoadError, first_line
from baton.engine.model.self_check import check_model
from baton.engine.model.torch_runner import TorchRunner
from baton.engine.runner import Runner

if TYPE_CHECKING:
    from baton.engine.model.gpu_runner import GpuRunner

DEVICES = ("auto", "cpu", "cuda")


def choose_device(wanted: str) -> torch.device:
    """`auto` is the GPU where there is one. Raises LoadError when a wanted one is not there."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise LoadError("device cuda: torch finds no GPU that it can use")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def make_runner(
    loaded: LoadedModel, step: LargestStep, device: torch.device, *, has_graphs: bool
) -> tuple[Runner, LoadedModel]:
    """A runner that was checked, and the model with its memory as it is on that device.

    Raises LoadError when the model does not give its own results there.
    """
    if device.type == "cpu":
        cpu_runner = TorchRunner(loaded)
        check_model(loaded, cpu_runner)
        return cpu_runner, loaded
    from baton.engine.model.gpu_runner import GpuRunner
    from baton.engine.model.step_inputs import StepLimits

    max_blocks = loaded.kv_spec.num_blocks_for(loaded.max_model_len)
    limits = StepLimits(step.num_tokens, step.num_rows, max_blocks)
    free_before = _free_bytes()
    runner = GpuRunner(loaded, limits, device)
    check_model(loaded, runner)
    loaded = dataclasses.replace(loaded, memory=_measured_need(runner, free_before))
    if has_graphs:
        _enable_graphs(loaded, runner)
    return runner, loaded


def _enable_graphs(loaded: LoadedModel, runner: "GpuRunner") -> None:
    try:
        runner.try_graph()
    except RuntimeError as error:
        raise LoadError(
            f"model {loaded.source.name}: its decode step cannot be captured as a CUDA graph: "
            f"{first_line(error)}: start with --cuda-graphs off"
        ) from error
    runner.captures_graphs = True


def _measured_need(runner: "GpuRunner", free_before: int) -> MemoryNeed:
    """What a model that is on the GPU takes there; `free_before` was free without it."""
    weight_bytes = free_before - _free_bytes()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.cuda.memory_allocated()
    runner.run_largest_step()
    return MemoryNeed(weight_bytes, torch.cuda.max_memory_allocated() - kept, free_before)


def _free_bytes() -> int:
    """What is free on the GPU, with what torch has cached and does not use."""
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])
