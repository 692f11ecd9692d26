"""Weights are read where the model will run; `meta` stands for a device without memory of the host.

That they are the right ones is seen in `load_tiny`, for every model that is served.
"""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from baton.model.load import memory_need
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError

META = torch.device("meta")
FILE_DTYPE = torch.float32


class HostMemory(TorchDispatchMode):
    """Counts the bytes of host memory that live tensors have; pages of files are left out."""

    def __init__(self):
        super().__init__()
        self.most_bytes = 0
        self._sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "cpu":
            storage = result.untyped_storage()
            if storage.filename is None:
                self._sizes[StorageWeakRef(storage)] = storage.nbytes()
        self._sizes = {ref: size for ref, size in self._sizes.items() if not ref.expired()}
        self.most_bytes = max(self.most_bytes, sum(self._sizes.values()))
        return result


def load_counted(folder, device, monkeypatch) -> tuple[torch.nn.Module, int]:
    """The model as read by one thread, and the most bytes of host memory that it took."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # a mode is one of a thread
    with HostMemory() as counted:
        loaded = load_model(str(folder), LoadOptions(dtype="bfloat16", device=device))
    return loaded.model, counted.most_bytes


# A cast of each weight, tied weights, experts that are stacked, layers in groups, shared caches.
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("mixtral", {}),
        ("deepseek-v3", {}),
        ("gemma4-shared-kv", {}),
    ],
)
def test_a_weight_is_on_the_host_only_while_it_is_copied(name, changes, model_folder, monkeypatch):
    folder = model_folder(name, **changes)
    model, most_bytes = load_counted(folder, META, monkeypatch)
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    sizes = [parameter.numel() * FILE_DTYPE.itemsize for parameter in model.parameters()]
    assert most_bytes <= max(sizes)
    assert load_counted(folder, torch.device("cpu"), monkeypatch)[1] >= sum(sizes) / 2


def test_a_model_larger_than_the_gpu_is_refused_before_it_is_read(model_folder, monkeypatch):
    monkeypatch.setattr(memory_need, "device_free_bytes", lambda: 1024)
    monkeypatch.setattr(memory_need, "free_bytes", lambda: pytest.fail("the host's memory"))
    options = LoadOptions(dtype="float32", device=torch.device("cuda"))
    with pytest.raises(LoadError, match=r"for weights\), .* are free"):
        load_model(str(model_folder("llama")), options)
