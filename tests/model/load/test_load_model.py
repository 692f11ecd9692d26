"""What can be served is described by a dry run; what cannot is refused in one line, with why."""

import json
import shutil
from unittest.mock import ANY

import huggingface_hub
import pytest
import safetensors.torch
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from baton.model.load import memory_need
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.wire.fingerprint import fingerprint_of, model_digests
from baton.wire.kv_spec import KVSpec


@pytest.fixture
def copy_of(model_folder, tmp_path):
    """A copy of a tiny model's folder that a test may damage."""

    def copy(name):
        folder = tmp_path / name
        shutil.copytree(model_folder(name), folder)
        return folder

    return copy


def refusal_of(name, **options) -> str:
    with pytest.raises(LoadError) as caught:
        load_model(str(name), LoadOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("model ")
    return message


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_loaded_model_is_described(model_folder):
    folder = model_folder("qwen3")
    loaded = load_model(str(folder), LoadOptions(dtype="float32"))
    assert loaded.source.name == "qwen3"
    assert loaded.source.revision == "local"
    # The folder has no tokenizer.json: the one that is made of its files is a part of the model.
    assert loaded.digests == model_digests(folder) | {"tokenizer.json": ANY}
    assert loaded.fingerprint == fingerprint_of(loaded.digests)
    assert loaded.vocab_size == 512
    assert loaded.max_model_len == 192
    assert loaded.eos_token_ids == (2,)
    assert not loaded.model.training


@pytest.mark.parametrize(
    ("name", "shape"),
    [("qwen3", (2, 16, 16)), ("gpt2", (4, 16, 16)), ("deepseek-v3", (4, 24, 20))],
)
def test_cache_shapes_come_from_what_attention_receives(model_folder, name, shape):
    loaded = load_model(str(model_folder(name)), LoadOptions(dtype="float32", block_size=32))
    num_layers = len(loaded.attention_modules)
    assert loaded.kv_spec == KVSpec.of_layers(32, [(*shape, "float32")] * num_layers)


@pytest.mark.parametrize(
    ("options", "stored", "expected"),
    [
        (LoadOptions(), torch.float32, "float32"),
        (LoadOptions(), torch.bfloat16, "bfloat16"),
        (LoadOptions(), torch.float16, "float32"),
        (LoadOptions(keeps_float16=True), torch.float16, "float16"),
        (LoadOptions(keeps_float16=True), torch.float32, "float32"),
        (LoadOptions(dtype="bfloat16"), torch.float32, "bfloat16"),
        (LoadOptions(dtype="float32"), torch.bfloat16, "float32"),
    ],
)
def test_dtype_is_the_wanted_one_or_the_checkpoints(copy_of, options, stored, expected):
    folder = copy_of("llama")
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(
        {name: tensor.to(stored) for name, tensor in tensors.items()}, path, {"format": "pt"}
    )
    edit_config(folder, dtype=str(stored).removeprefix("torch."))
    loaded = load_model(str(folder), options)
    assert {layer.dtype for layer in loaded.kv_spec.layers} == {expected}


def test_architectures_that_cannot_be_served_are_refused_by_name(
    refused_architecture, model_folder
):
    name, reason = refused_architecture
    message = refusal_of(model_folder(name))
    assert name in message
    assert reason in message


def test_longrope_is_served_within_its_short_context(model_folder):
    loaded = load_model(str(model_folder("phi3-longrope")), LoadOptions(max_model_len=64))
    assert loaded.max_model_len == 64


def test_chunked_attention_is_served_within_one_chunk(model_folder):
    loaded = load_model(str(model_folder("llama4-chunked")), LoadOptions(max_model_len=32))
    assert loaded.max_model_len == 32


def test_a_folder_that_does_not_exist_is_named():
    assert "./no/such/folder: no such folder" in refusal_of("./no/such/folder")


def test_a_hub_model_that_cannot_be_reached_is_named(monkeypatch):
    def fail(*_, **__):
        raise LocalEntryNotFoundError("long\ntext")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert "owner/model: no such folder" in refusal_of("owner/model")


def test_a_folder_without_config_is_refused(tmp_path):
    assert "no config.json" in refusal_of(tmp_path)


def test_pickled_weights_are_refused(copy_of):
    folder = copy_of("llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "only pytorch_model.bin" in refusal_of(folder)


def test_a_model_that_brings_its_own_code_is_refused(copy_of):
    folder = copy_of("llama")
    edit_config(folder, model_type="novel", auto_map={"AutoModelForCausalLM": "novel.Novel"})
    assert "auto_map" in refusal_of(folder)


def test_missing_tensors_are_named(copy_of):
    path = copy_of("llama") / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    del tensors["model.norm.weight"]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    assert "model.norm.weight" in refusal_of(path.parent)


def test_tensors_of_another_shape_are_refused(copy_of):
    folder = copy_of("llama")
    edit_config(folder, intermediate_size=128)
    assert "weights do not fit" in refusal_of(folder)


def test_damaged_weights_are_refused(copy_of):
    path = copy_of("llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    refusal_of(path.parent)


def test_a_malformed_config_is_refused(copy_of):
    folder = copy_of("llama")
    edit_config(folder, hidden_size="many")
    refusal_of(folder)


def test_a_model_that_does_not_fit_into_memory_is_refused_with_the_numbers(
    model_folder, monkeypatch
):
    monkeypatch.setattr(memory_need, "free_bytes", lambda: 3 * 2**30)
    message = refusal_of(model_folder("llama"), kv_bytes=4 * 2**30)
    assert "4.00 GiB for the KV cache" in message
    assert "3.00 GiB are free" in message


def test_a_context_beyond_the_models_own_is_refused(model_folder):
    assert "exceeds the model's 192" in refusal_of(model_folder("llama"), max_model_len=193)


def test_cached_files_do_not_count_against_a_memory_limit(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 100\nactive_file 200\ninactive_file 400\n")
    monkeypatch.setattr(memory_need, "_CGROUP", tmp_path)

    assert memory_need.free_bytes() == 700
