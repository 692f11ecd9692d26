"""`baton size` computes from a configuration what a worker holds, as the worker does itself."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from baton.cli.__main__ import main
from baton.cli.sizing.machines import ACCELERATORS, Accelerator
from baton.cli.sizing.outline import ModelOutline
from baton.cli.sizing.worker import DoesNotFit
from baton.model.load.load import LoadOptions, load_model, outline_model
from baton.model.load.load_error import LoadError
from baton.model.load.pool_size import PoolOptions, choose_pool

CONFIGS = Path(__file__).with_name("configs")
H100 = ACCELERATORS["h100"]
GIB = 2**30


def outline(name: str, engine: str = "baton", num_ranks: int = 1) -> ModelOutline:
    return ModelOutline(str(CONFIGS / f"{name}.json"), engine, num_ranks, LoadOptions())


@pytest.mark.parametrize(
    ("name", "kib_per_token", "billions"),
    [("qwen3-32b", 256, 32.8), ("llama-3.3-70b", 320, 70.6), ("llama-3.1-8b", 128, 8.0)],
)
def test_known_models_have_their_known_sizes(name, kib_per_token, billions) -> None:
    found = outline_model(str(CONFIGS / f"{name}.json"), LoadOptions())
    assert found.kv_spec.row_bytes / found.kv_spec.block_size == kib_per_token * 1024
    assert found.memory.weight_bytes / 2e9 == pytest.approx(billions, abs=0.05)
    assert all(parameter.device.type == "meta" for parameter in found.model.parameters())


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "deepseek-v3", "gpt-oss"])
def test_an_outline_is_the_loaded_model_without_its_weights(name, model_folder) -> None:
    folder = model_folder(name)
    loaded, found = (make(str(folder), LoadOptions()) for make in (load_model, outline_model))
    memory = dataclasses.replace(loaded.memory, free_bytes=GIB)
    pools = [
        choose_pool(dataclasses.replace(each, memory=memory), PoolOptions())
        for each in (loaded, found)
    ]
    assert found.kv_spec == loaded.kv_spec
    assert found.memory.weight_bytes == loaded.memory.weight_bytes
    assert found.memory.activation_bytes == loaded.memory.activation_bytes
    assert pools[0] == pools[1]


def test_a_configuration_alone_is_as_good_as_its_folder(tmp_path) -> None:
    text = (CONFIGS / "llama-3.1-8b.json").read_text()
    (tmp_path / "config.json").write_text(text)
    alone, folder = (
        outline_model(str(path), LoadOptions()) for path in (tmp_path / "config.json", tmp_path)
    )
    assert alone.kv_spec == folder.kv_spec
    assert alone.source == folder.source


def test_a_32b_model_leaves_one_gpu_35_thousand_tokens_and_two_ranks_320_thousand() -> None:
    alone = outline("qwen3-32b").worker(H100, 0.9, 256)
    pair = outline("qwen3-32b", "vllm", 2).worker(H100, 0.9, 64)
    assert alone.num_kv_tokens == pytest.approx(35_500, abs=500)
    assert pair.num_kv_tokens == pytest.approx(323_000, abs=3_000)


def test_a_model_that_is_too_large_is_refused_with_the_numbers() -> None:
    with pytest.raises(DoesNotFit, match=r"131\.4 GiB of weights .* 90% of 79\.0 GiB"):
        outline("llama-3.3-70b").worker(H100, 0.9, 64)


def test_ranks_must_share_the_kv_heads_evenly() -> None:
    with pytest.raises(LoadError, match="3 ranks cannot share 8 KV heads"):
        outline("qwen3-32b", "vllm", 3)


def test_of_experts_a_token_computes_with_a_few(model_folder) -> None:
    device = Accelerator("h100", 1, 1, 1)
    model = ModelOutline(str(model_folder("mixtral")), "baton", 1, LoadOptions())
    weights = model.worker(device, 0.9, 1).weights
    assert weights.flops < weights.num_bytes / torch.float32.itemsize * 2 * 0.8


def test_quantised_weights_are_whole_in_our_engine_and_as_stored_in_vllms(tmp_path) -> None:
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ModelOutline(str(tmp_path), "baton", 1, LoadOptions()).weight_bytes == 16_060_522_496
    with pytest.raises(LoadError, match="give the folder that has them"):
        ModelOutline(str(tmp_path), "vllm", 1, LoadOptions())
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert ModelOutline(str(tmp_path), "vllm", 1, LoadOptions()).weight_bytes == 1000


def test_the_command_prints_its_plan_for_programs(monkeypatch, capsys) -> None:
    model = str(CONFIGS / "llama-3.1-8b.json")
    traffic = ["--rate", "20", "--prompt", "1500", "--output", "300", "--cached", "0.6"]
    command = ["baton", "size", "--model", model, *traffic, "--itl-ms", "25", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    facts = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert facts["num_needed"] == {"prefill": 1, "decode": 2}
    assert (facts["num_prefill"], facts["num_decode"]) == (2, 3)
    assert facts["kv_bytes_per_token"] == 128 * 1024
    assert facts["problems"] == []


def test_a_model_that_is_not_there_is_refused_in_one_line(monkeypatch, capsys) -> None:
    traffic = ["--rate", "1", "--prompt", "100", "--output", "100"]
    monkeypatch.setattr(sys, "argv", ["baton", "size", "--model", "/no/where", *traffic])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "baton: model /no/where: no such folder or file\n"
