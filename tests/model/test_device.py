"""Where a model runs."""

import pytest
import torch

from baton.model.device import choose_device, make_runner
from baton.model.gpu_driver import why_no_gpu
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.model.load.memory_need import LargestStep, MemoryNeed
from baton.testing.tiny_models import make_embedding_model
from tests import needs

HAS_GPU = torch.cuda.is_available()


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == choose_device("cpu").type == "cpu"
    with pytest.raises(LoadError, match="no GPU"):
        choose_device("cuda")


OPEN_KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\nGCC version: 12\n"
)


@pytest.mark.parametrize(
    ("text", "cuda", "reason"),
    [
        (CLOSED, "13.0", "driver 550 is older than 580, which CUDA 13.0 needs"),
        (OPEN_KERNEL, "13.0", "driver 570 is older than 580, which CUDA 13.0 needs"),
        (CLOSED, "12.9", "driver 550 is new enough for CUDA 12.9: look at CUDA_VISIBLE_DEVICES"),
        (None, "13.0", "the machine shows no NVIDIA driver"),
        (CLOSED, None, "built without CUDA: take the image worker-cuda"),
    ],
)
def test_why_torch_finds_no_gpu_is_said(tmp_path, text, cuda, reason):
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text)
    assert reason in why_no_gpu(cuda, file)


def test_a_model_that_gives_vectors_is_refused_on_a_gpu(tmp_path):
    make_embedding_model("qwen3", tmp_path / "m", "lasttoken")
    loaded = load_model(str(tmp_path / "m"), LoadOptions(dtype="float32"))
    with pytest.raises(LoadError, match="gives vectors, which need --device cpu"):
        make_runner(loaded, LargestStep(), torch.device("cuda"), has_graphs=True)


def test_a_model_is_checked_and_measured_before_it_gets_graphs(model_folder, monkeypatch):
    pytest.importorskip("triton", reason=needs.TRITON)
    from baton.model.gpu import gpu_start

    device = torch.device("cuda" if HAS_GPU else "cpu")
    options = LoadOptions(dtype="float32", device=device)
    loaded = load_model(str(model_folder("qwen3", num_hidden_layers=1)), options)
    need = MemoryNeed(7, 8, 9)
    checked = []

    def check(loaded, runner):
        checked.append((loaded, runner))
        runner.make_pool(1)

    monkeypatch.setattr(gpu_start, "check_model", check)
    monkeypatch.setattr(gpu_start, "_measured_need", lambda runner, expected: need)
    step = LargestStep(num_tokens=16, num_rows=2)
    runner, measured = gpu_start.make_gpu_runner(loaded, step, device, has_graphs=True)
    assert checked == [(loaded, runner)]
    assert runner.captures_graphs
    assert measured.memory == need

    def refuse(size):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(gpu_start.GpuRunner, "try_graph", refuse)
    with pytest.raises(LoadError, match=r"stream is capturing: start with --cuda-graphs off$"):
        gpu_start.make_gpu_runner(loaded, step, device, has_graphs=True)


def test_deterministic_results_are_not_promised_on_a_gpu(model_folder):
    loaded = load_model(str(model_folder("qwen3")), LoadOptions(dtype="float32"))
    step, device = LargestStep(num_tokens=16, num_rows=2), torch.device("cuda")
    with pytest.raises(LoadError, match="--deterministic is for --device cpu only"):
        make_runner(loaded, step, device, has_graphs=True, is_deterministic=True)


@pytest.mark.skipif(not HAS_GPU, reason=needs.GPU)
def test_on_a_gpu_memory_is_measured_and_graphs_are_captured(model_folder):
    device = choose_device("auto")
    options = LoadOptions(dtype="bfloat16", device=device)
    loaded = load_model(str(model_folder("qwen3")), options)
    step = LargestStep(num_tokens=128, num_rows=4)
    from baton.model.gpu.step_graphs import decode_sizes, token_sizes

    runner, on_gpu = make_runner(loaded, step, device, has_graphs=True)
    assert on_gpu.memory.weight_bytes > 0
    assert on_gpu.memory.activation_bytes > 0
    runner.bind_pool(memoryview(bytearray(16 * loaded.kv_spec.row_bytes)))
    assert runner.num_graphs == len(decode_sizes(4)) + len(token_sizes(128))
