"""Whatever the schedule, each token is of the logits that transformers gives after those before it.

There are about 20,000 tokens; with BATON_TEST_LONG, a million.
"""

import os

import pytest

from baton.model.cpu import dense, native
from baton.model.cpu.cpu_attention import CpuAttention
from baton.model.cpu.dense import DenseForward
from baton.model.forward_pass import ModuleForward
from baton.model.load.load import LoadedModel, LoadOptions, load_model
from baton.model.tensors.torch_attention import TorchAttention
from baton.model.torch_runner import TorchRunner
from tests.model.engine.random_traffic import RandomTraffic, roomy_search

pytestmark = pytest.mark.usefixtures("compiled_kernels")
NUM_SEEDS = 50 if os.environ.get("BATON_TEST_LONG") else 1
# Of the compiled step on each instruction set, of each model's modules, and in plain torch.
NUM_STEP_TOKENS, NUM_MODULE_TOKENS, NUM_TORCH_TOKENS = 3000, 1600, 1000
BLOCK_SIZES = (16, 5, 32, 8, 1)
WHOLE_PANELS = {"head_dim": 32}
# By transformers' modules and the compiled attention, one kind of layer each.
MODULES = ("gpt-oss", "gemma2", "deepseek-v3", "qwen3-moe", "gpt2")
FUSED = ("qwen3", "ministral", "qwen2-yarn")


@pytest.fixture
def load(model_folder, reference_of):
    def load_with(name, block_size, **changes):
        folder = model_folder(name, **changes)
        options = LoadOptions(dtype="float32", block_size=block_size)
        return load_model(str(folder), options), reference_of(folder)

    return load_with


def compare(loaded: LoadedModel, reference, make_runner, seed: int, num_tokens: int) -> None:
    """One run of random traffic against transformers, and its searches against lone ones."""
    traffic = RandomTraffic(loaded, make_runner(), seed)
    traffic.run(num_tokens)
    assert traffic.check(reference) >= num_tokens / 2
    for search in traffic.searches:
        assert traffic.outputs(search) == roomy_search(loaded, make_runner(), search), seed


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_the_compiled_step_on_each_instruction_set(isa, seed, load, monkeypatch):
    monkeypatch.setattr(dense, "best_isa", lambda: native.ISAS.index(isa))
    place = seed + native.ISAS.index(isa)
    name = FUSED[place % len(FUSED)]
    loaded, reference = load(name, BLOCK_SIZES[place % len(BLOCK_SIZES)], **WHOLE_PANELS)

    def make_runner():
        runner = TorchRunner(loaded)
        assert isinstance(runner._forward, DenseForward)
        return runner

    compare(loaded, reference, make_runner, 1000 * place + seed, NUM_STEP_TOKENS)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_models_through_their_modules(name, seed, load):
    place = seed + MODULES.index(name)
    loaded, reference = load(name, BLOCK_SIZES[place % len(BLOCK_SIZES)])
    isas = native.usable_isas()

    def make_runner():
        runner = TorchRunner(loaded, CpuAttention(isas[place % len(isas)]))
        assert isinstance(runner._forward, ModuleForward)
        return runner

    compare(loaded, reference, make_runner, 1000 * place + seed, NUM_MODULE_TOKENS)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_plain_torch(seed, load):
    loaded, reference = load("mistral-window", BLOCK_SIZES[seed % len(BLOCK_SIZES)])
    compare(
        loaded, reference, lambda: TorchRunner(loaded, TorchAttention()), seed, NUM_TORCH_TOKENS
    )
