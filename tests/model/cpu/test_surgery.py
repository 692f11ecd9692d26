"""What surgery replaces and what it leaves. That results stay is the oracle's test, too."""

from collections import Counter

import pytest
import torch
from torch import nn

from baton.model.cpu import fused_modules
from baton.model.cpu.fused_modules import FusedPart, GatedMlp, PackedNorm, SharedProduct
from baton.model.cpu.linear import PackedLinear
from baton.model.cpu.surgery import accelerate
from baton.model.load.load import LoadOptions, load_model

pytestmark = pytest.mark.usefixtures("compiled_kernels")
TOKENS = torch.arange(3, 23)[None]


@torch.inference_mode()
def logits(model: nn.Module) -> torch.Tensor:
    model.set_attn_implementation("eager")
    return model(input_ids=TOKENS, use_cache=False).logits.float()


def kinds(model: nn.Module) -> Counter[type]:
    return Counter(type(module) for module in model.modules())


@pytest.fixture
def load(model_folder):
    """A model that no other test uses."""
    return lambda name, dtype="float32": (
        load_model(str(model_folder(name)), LoadOptions(dtype=dtype)).model
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_stay_the_same_and_a_second_time_changes_nothing(architecture, load, dtype):
    model = load(architecture, dtype)
    before = logits(model)
    accelerate(model)
    found = kinds(model)
    after = logits(model)
    # One expert chosen otherwise, for a last bit, changes a row of a mixture grossly.
    rows = (after - before).abs().mean(-1) / before.std()
    assert float(rows.median()) <= {"float32": 1e-5, "bfloat16": 0.03}[dtype]
    accelerate(model)
    assert kinds(model) == found


def test_every_layer_of_a_llama_is_replaced_and_its_weights_are_dropped(load):
    model = load("llama")
    num_layers = len(model.model.layers)
    accelerate(model)
    found = kinds(model)
    assert found[FusedPart] == 3 * num_layers
    assert found[GatedMlp] == num_layers
    assert found[PackedLinear] == num_layers + 1  # after attention, and the output layer
    assert found[PackedNorm] == 2 * num_layers + 1
    assert found[nn.Linear] == 0
    assert [name for name, _ in model.named_parameters()] == ["model.embed_tokens.weight"]


def test_a_norm_that_scales_by_one_plus_its_weight_stays(load):
    model = load("gemma2")
    accelerate(model)
    assert kinds(model)[PackedNorm] == 0


def test_an_mlp_with_another_activation_keeps_it(load):
    model = load("gemma2")
    accelerate(model)
    found = kinds(model)
    assert found[GatedMlp] == 0
    assert found[nn.Linear] == 0  # its layers are packed all the same


def test_a_model_that_reads_its_layers_weights_stays_as_it_is(load):
    model = load("llama")
    read = model.model.layers[0].self_attn.o_proj
    model.model.layers[0].register_forward_pre_hook(
        lambda module, _: module.self_attn.o_proj.weight.dtype and None
    )
    accelerate(model)
    assert model.model.layers[0].self_attn.o_proj is read
    assert kinds(model)[PackedLinear] == 0


def test_a_replacement_that_differs_is_left_out(load, monkeypatch):
    model = load("llama")
    monkeypatch.setattr(PackedNorm, "forward", lambda self, rows: rows * 1.001)
    monkeypatch.setattr(fused_modules, "_MAX_MLP_ERROR", {torch.float32: -1.0})
    before = logits(model)
    accelerate(model)
    assert kinds(model)[PackedNorm] == kinds(model)[GatedMlp] == 0
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-5)


def test_parts_of_a_product_are_computed_once_for_one_input():
    calls = []

    class Doubling(nn.Module):
        def forward(self, rows):
            calls.append(rows)
            return torch.cat([rows, 2 * rows], -1)

    shared = SharedProduct(Doubling(), (2, 2))
    first, second = FusedPart(shared, 0), FusedPart(shared, 1)
    rows, other = torch.ones(1, 2), torch.ones(1, 2)
    assert second(rows).tolist() == [[2, 2]]
    assert first(rows).tolist() == [[1, 1]]
    assert len(calls) == 1
    first(rows)  # a new forward pass may get the same tensor with other values
    assert len(calls) == 2
    assert second(3 * other).tolist() == [[6, 6]]
    assert len(calls) == 3
