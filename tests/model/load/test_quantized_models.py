"""Quantised checkpoints, packed here as their makers pack them, say what transformers says."""

import json
from collections.abc import Callable

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file

from baton.model.load import quantization
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.model.load.self_check import check_model
from baton.model.torch_runner import TorchRunner
from baton.testing.tiny_models import make_model
from tests import needs

NUM_TOKENS = 12
GROUP = 32  # weights with one scale
TILE = 16  # rows and columns with one scale
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4_VALUES = torch.cat([FP4, -FP4])

Tensors = dict[str, torch.Tensor]


def scaled(weight: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as `[rows, groups, GROUP]` in units of their scales `[rows, groups]`."""
    groups = weight.unflatten(-1, (-1, GROUP))
    scales = groups.abs().amax(-1) / largest
    return groups / scales[..., None], scales


def fp8(name: str, weight: torch.Tensor) -> Tensors:
    tiles = weight.unflatten(0, (-1, TILE)).unflatten(-1, (-1, TILE))
    scales = tiles.abs().amax((1, 3)) / 448
    packed = (tiles / scales[:, None, :, None]).to(torch.float8_e4m3fn).reshape(weight.shape)
    return {name: packed, f"{name}_scale_inv": scales}


def float_quantized(name: str, weight: torch.Tensor) -> Tensors:
    scales = weight.abs().amax(1, keepdim=True) / 448
    return {name: (weight / scales).to(torch.float8_e4m3fn), f"{name}_scale": scales}


def int_quantized(name: str, weight: torch.Tensor) -> Tensors:
    scales = weight.abs().amax(1, keepdim=True) / 127
    return {name: (weight / scales).round().to(torch.int8), f"{name}_scale": scales}


def pack_quantized(name: str, weight: torch.Tensor) -> Tensors:
    values, scales = scaled(weight, 7)
    nibbles = (values.round().flatten(-2).long() + 8).unflatten(-1, (-1, 8))
    words = (nibbles << (4 * torch.arange(8))).sum(-1)
    packed = torch.where(words < 2**31, words, words - 2**32).int()
    shape = torch.tensor(weight.shape)
    return {f"{name}_packed": packed, f"{name}_scale": scales, f"{name}_shape": shape}


def mxfp4(name: str, weight: torch.Tensor) -> Tensors:
    groups = weight.transpose(1, 2).unflatten(-1, (-1, GROUP))
    exponents = (groups.abs().amax(-1) / 6).log2().ceil()
    values = groups / exponents.exp2()[..., None]
    codes = (values[..., None] - FP4_VALUES).abs().argmin(-1).to(torch.uint8)
    blocks = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return {f"{name}_blocks": blocks, f"{name}_scales": (exponents + 127).to(torch.uint8)}


def compressed(format_: str, num_bits: int, kind: str, **more: object) -> dict[str, object]:
    weights = {"num_bits": num_bits, "type": kind, "symmetric": True, "dynamic": False, **more}
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


# architecture, packing of one weight, quantization_config
FORMATS: dict[str, tuple[str, Callable[[str, torch.Tensor], Tensors], dict[str, object]]] = {
    "fp8": ("qwen3", fp8, {"quant_method": "fp8", "weight_block_size": [TILE, TILE]}),
    "fp8-experts": ("qwen3-moe", fp8, {"quant_method": "fp8", "weight_block_size": [TILE, TILE]}),
    "mxfp4": ("gpt-oss", mxfp4, {"quant_method": "mxfp4"}),
    "float-quantized": (
        "qwen3",
        float_quantized,
        compressed("float-quantized", 8, "float", strategy="channel"),
    ),
    "int-quantized": (
        "qwen3",
        int_quantized,
        compressed("int-quantized", 8, "int", strategy="channel"),
    ),
    "pack-quantized": (
        "qwen3",
        pack_quantized,
        compressed("pack-quantized", 4, "int", strategy="group", group_size=GROUP),
    ),
}


def is_quantized(name: str, weight: torch.Tensor, pack: Callable) -> bool:
    if pack is mxfp4:
        return weight.dim() == 3
    return weight.dim() == 2 and not any(part in name for part in ("embed", "lm_head", "gate.w"))


@pytest.fixture
def quantized_folder(tmp_path):
    """Makes a folder with a quantised model. Returns it and the model before."""

    def make(format_name):
        architecture, pack, config = FORMATS[format_name]
        folder = tmp_path / format_name
        make_model(architecture, folder)
        before = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        path = folder / "model.safetensors"
        tensors: Tensors = {}
        for name, weight in load_file(path).items():
            tensors |= pack(name, weight) if is_quantized(name, weight, pack) else {name: weight}
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, {"format": "pt"})
        add_to_config(folder, config)
        return folder, before

    return make


def add_to_config(folder, quantization_config):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": quantization_config}
    path.write_text(json.dumps(config))


# transformers 5.17 cannot decode it: such a model is refused.
SERVED = FORMATS.keys() - (
    {"int-quantized"} if Version(transformers.__version__) < Version("5.18") else set()
)


@pytest.mark.parametrize("format_name", sorted(SERVED))
def test_a_quantised_model_generates_what_transformers_does(
    format_name, quantized_folder, reference_of, prompts, drive, greedy_sampling
):
    folder, before = quantized_folder(format_name)
    loaded = load_model(str(folder), LoadOptions(dtype="float32"))
    assert_close_to(before, loaded.model)
    check_model(loaded, TorchRunner(loaded))

    config = transformers.AutoConfig.from_pretrained(folder)
    config.quantization_config["dequantize"] = True
    reference = reference_of(folder, config=config)
    driver = drive(loaded, max_step_tokens=16)
    sampling = greedy_sampling(NUM_TOKENS)
    driver.run([driver.request(i, prompt, sampling) for i, prompt in enumerate(prompts)])
    for index, prompt in enumerate(prompts):
        reference.assert_same(prompt, reference.generate(prompt, NUM_TOKENS), driver.tokens[index])


def assert_close_to(before, after) -> None:
    """Weights are as near to what was quantised as four bits allow, and some did change."""
    whole = dict(after.named_parameters())
    changes = [
        float((whole[name] - weight.detach()).abs().mean() / weight.detach().std())
        for name, weight in before.named_parameters()
    ]
    assert 0.001 < max(changes) < 0.15


@pytest.mark.parametrize("format_name", ["fp8", "mxfp4"])
def test_whole_weights_have_the_dtype_asked_for(format_name, quantized_folder):
    folder, _ = quantized_folder(format_name)
    loaded = load_model(str(folder), LoadOptions(dtype="bfloat16"))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    check_model(loaded, TorchRunner(loaded))


def test_memory_is_asked_for_whole_weights(quantized_folder):
    folder, before = quantized_folder("pack-quantized")
    loaded = load_model(str(folder), LoadOptions(dtype="bfloat16"))
    assert loaded.memory.weight_bytes == 2 * sum(p.numel() for p in before.parameters())


@needs.bitsandbytes
@pytest.mark.parametrize("bits", [4, 8])
def test_a_bitsandbytes_model_generates_what_transformers_does(
    bits, tmp_path, reference_of, prompts, drive, greedy_sampling
):
    make_model("qwen3", tmp_path / "full")
    config = transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    quantized = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "full", quantization_config=config, dtype=torch.float32
    )
    quantized.save_pretrained(tmp_path / "small")
    loaded = load_model(str(tmp_path / "small"), LoadOptions(dtype="float32"))
    driver = drive(loaded, max_step_tokens=16)
    driver.run([driver.request(0, prompts[0], greedy_sampling(NUM_TOKENS))])
    reference = reference_of(tmp_path / "small")
    reference.model.dequantize(dtype=torch.float32)
    expected = reference.generate(prompts[0], NUM_TOKENS)
    reference.assert_same(prompts[0], expected, driver.tokens[0])


def refusal_of(folder) -> str:
    with pytest.raises(LoadError) as caught:
        load_model(str(folder), LoadOptions(dtype="float32"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq' are not served: gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "'awq' are not served: gptqmodel"),
        ({"quant_method": "quanto"}, "'quanto' are not served; served are bitsandbytes, compr"),
        ({"bits": 4}, "an unnamed method"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            "format 'nvfp4-pack-quantized' is not served, only float-quantized",
        ),
        ("fp8", "not an object"),
    ],
)
def test_other_quantisations_are_refused_by_name(model_folder, tmp_path, config, reason):
    make_model("llama", tmp_path / "m")
    add_to_config(tmp_path / "m", config)
    assert reason in refusal_of(tmp_path / "m")


def test_a_missing_package_is_named(quantized_folder, monkeypatch):
    folder, _ = quantized_folder("float-quantized")
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda name: None)
    assert "need the package compressed-tensors" in refusal_of(folder)


def test_scales_that_nothing_uses_are_refused(quantized_folder):
    folder, _ = quantized_folder("fp8")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"model.novel_scale": torch.ones(1)}, path, {"format": "pt"})
    assert "unexpected_keys, such as model.novel_scale" in refusal_of(folder)
