"""Chooses the device on which a model runs, and makes its runner.

Triton is imported only for a GPU, so that a machine without one needs no wheel of it.
"""

import torch

from baton.engine.protocol.runner import Runner
from baton.model.gpu_driver import why_no_gpu
from baton.model.load.load import LoadedModel
from baton.model.load.load_error import LoadError
from baton.model.load.memory_need import LargestStep
from baton.model.load.self_check import check_model
from baton.model.pooling_runner import TorchPoolingRunner
from baton.model.torch_runner import TorchRunner

DEVICES = ("auto", "cpu", "cuda")


def choose_device(wanted: str) -> torch.device:
    """`auto` is the GPU where there is one. Raises LoadError when a wanted one is not there."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        reason = why_no_gpu(torch.version.cuda)
        raise LoadError(f"device cuda: torch finds no GPU that it can use; {reason}")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def make_runner(
    loaded: LoadedModel,
    step: LargestStep,
    device: torch.device,
    *,
    has_graphs: bool,
    is_deterministic: bool = False,
) -> tuple[Runner, LoadedModel]:
    """A runner that was checked, and the model with its memory as it is on that device.

    Raises LoadError when the model does not give its own results there, or not deterministically.
    """
    if device.type == "cpu":
        make = TorchRunner if loaded.pooler is None else TorchPoolingRunner
        runner = make(loaded, is_deterministic=is_deterministic)
        check_model(loaded, runner)
        return runner, loaded
    if loaded.pooler is not None:
        raise LoadError(f"model {loaded.source.name}: gives vectors, which need --device cpu")
    if is_deterministic:
        raise LoadError(f"model {loaded.source.name}: --deterministic is for --device cpu only")
    from baton.model.gpu.gpu_start import make_gpu_runner

    return make_gpu_runner(loaded, step, device, has_graphs=has_graphs)
