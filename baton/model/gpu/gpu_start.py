"""A GpuRunner that is ready to serve: checked, measured, and sure that its steps can be captured.

What a model needs is measured where it runs: its weights are there already, and one largest step
is run. Importing this imports Triton.
"""

import dataclasses

import torch

from baton.model.gpu.gpu_runner import GpuRunner
from baton.model.gpu.step_inputs import StepLimits
from baton.model.load.load import LoadedModel
from baton.model.load.load_error import LoadError, first_line
from baton.model.load.memory_need import LargestStep, MemoryNeed, device_free_bytes
from baton.model.load.self_check import check_model


def make_gpu_runner(
    loaded: LoadedModel, step: LargestStep, device: torch.device, *, has_graphs: bool
) -> tuple[GpuRunner, LoadedModel]:
    """As `device.make_runner`."""
    max_blocks = loaded.kv_spec.num_blocks_for(loaded.max_model_len)
    limits = StepLimits(step.num_tokens, step.num_rows, max_blocks)
    runner = GpuRunner(loaded, limits, device)
    check_model(loaded, runner)
    loaded = dataclasses.replace(loaded, memory=_measured_need(runner, loaded.memory))
    if has_graphs:
        _enable_graphs(loaded.source.name, runner)
    return runner, loaded


def _enable_graphs(name: str, runner: GpuRunner) -> None:
    try:
        runner.try_graph()
    except RuntimeError as error:
        raise LoadError(
            f"model {name}: its steps cannot be captured as CUDA graphs: "
            f"{first_line(error)}: start with --cuda-graphs off"
        ) from error
    runner.captures_graphs = True


def _measured_need(runner: GpuRunner, expected: MemoryNeed) -> MemoryNeed:
    """The memory of a model that is on the GPU; what was free before is in `expected`."""
    free_before = expected.free_bytes
    assert free_before is not None, "a GPU tells its free memory"
    weight_bytes = free_before - device_free_bytes()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.cuda.memory_allocated()
    runner.run_largest_step()
    return MemoryNeed(weight_bytes, torch.cuda.max_memory_allocated() - kept, free_before)
