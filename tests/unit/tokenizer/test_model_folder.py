"""Reading model folders: what counts, what is refused."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.testing.tokenizer_folder import build_tokenizer_folder
from services.tokenizer.model_folder import (
    ModelFolder,
    UnusableModel,
    build_tokenizer,
    read_model_folder,
)
from services.tokenizer.served_model import ServedModel

Load = Callable[[Path], Awaitable[ServedModel]]


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def read(folder: Path) -> ModelFolder:
    return read_model_folder(folder, "m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_tokenizer_folder(tmp_path / "model")


def test_template_file_comes_before_the_configurations_entry(folder: Path):
    edit(folder / "tokenizer_config.json", chat_template="from config")
    assert read(folder).templates == {"default": "from config"}
    (folder / "chat_template.jinja").write_text("from file")
    assert read(folder).templates == {"default": "from file"}


def test_several_templates_keep_their_names(folder: Path):
    entry = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    edit(folder / "tokenizer_config.json", chat_template=entry)
    assert read(folder).templates == {"default": "a", "tool_use": "b"}
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("c")
    (folder / "chat_template.jinja").write_text("d")
    assert read(folder).templates == {"default": "d", "tool_use": "c"}


def test_processors_template_is_the_last_resort(folder: Path):
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "p"}))
    assert read(folder).templates == {"default": "p"}


def test_named_tokens_include_the_models_own(folder: Path):
    edit(
        folder / "tokenizer_config.json",
        bos_token={"__type": "AddedToken", "content": "<s>"},
        pad_token=None,
        image_token="<image>",
        add_bos_token=True,
        extra_special_tokens={"boi_token": "<boi>"},
    )
    named = read(folder).special_tokens
    assert named == {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "image_token": "<image>", "boi_token": "<boi>",
    }  # fmt: skip


def test_tokens_that_only_the_configuration_has_are_added(folder: Path):
    added = {"1000": {"content": "<extra>", "special": True}}
    edit(folder / "tokenizer_config.json", added_tokens_decoder=added, pad_token="<pad>")
    described = read(folder)
    tokenizer = build_tokenizer(described)
    assert tokenizer.encode("<extra><pad>", add_special_tokens=False).tokens == ["<extra>", "<pad>"]


def test_truncation_and_padding_of_the_file_are_ignored(folder: Path):
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", truncation=truncation)
    assert len(build_tokenizer(read(folder)).encode("so la ti do")) > 2


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, (5, 6)),
        ({"eos_token_id": 5}, {}, (5,)),
        ({}, {"eos_token_id": 7}, (7,)),
        ({}, {"eos_token_id": None, "text_config": {"eos_token_id": [8]}}, (8,)),
        ({"eos_token_id": []}, {"eos_token_id": None}, ()),
    ],
)
def test_end_tokens_come_from_the_generation_configuration_first(
    folder: Path, generation: dict, config: dict, expected: tuple
):
    edit(folder / "generation_config.json", **generation)
    edit(folder / "config.json", **config)
    assert read(folder).eos_token_ids == expected


async def test_end_token_of_the_tokenizer_is_the_last_resort(folder: Path, load: Load):
    edit(folder / "config.json", eos_token_id=None)
    model = await load(folder)
    assert model.eos_token_ids == (model.tokenizer.token_id("</s>"),)


async def test_ids_stop_at_the_end_of_the_embedding(folder: Path, load: Load):
    edit(folder / "config.json", vocab_size=100)
    assert (await load(folder)).vocab_size == 100
    edit(folder / "config.json", vocab_size=10**6)
    model = await load(folder)
    assert model.vocab_size == model.tokenizer.num_ids < 10**6


def test_revision_is_a_snapshot_folders_name(tmp_path: Path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert read(build_tokenizer_folder(tmp_path / "snapshots" / commit)).revision == commit
    assert read(build_tokenizer_folder(tmp_path / "model")).revision == ""


def test_links_into_the_blob_store_of_a_download_are_followed(tmp_path: Path):
    folder = build_tokenizer_folder(tmp_path / "snapshots" / "main")
    (tmp_path / "blobs").mkdir()
    (folder / "tokenizer.json").rename(tmp_path / "blobs" / "x")
    (folder / "tokenizer.json").symlink_to(tmp_path / "blobs" / "x")
    assert read(folder).tokenizer_json


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "chat_template.jinja", "config.json", "tokenizer_config.json"]
)
def test_link_to_outside_of_the_folder_is_refused(folder: Path, tmp_path: Path, name: str):
    (folder / name).unlink(missing_ok=True)
    (tmp_path / "secret").write_text("{}")
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UnusableModel, match=name):
        read(folder)


def test_tokenizer_with_code_of_its_own_is_refused(folder: Path):
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]})
    with pytest.raises(UnusableModel, match="auto_map"):
        read(folder)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff", "[" * 100_000])
def test_malformed_configuration_is_refused_by_name(folder: Path, content: str):
    (folder / "tokenizer_config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UnusableModel, match="tokenizer_config"):
        read(folder)


def test_malformed_tokenizer_is_refused_by_name(folder: Path):
    (folder / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(UnusableModel, match=r"tokenizer\.json"):
        build_tokenizer(read(folder))


def test_folder_without_weights_or_without_anything_is_refused_by_name(
    folder: Path, tmp_path: Path
):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnusableModel, match="safetensors"):
        read(folder)
    with pytest.raises(UnusableModel, match="nowhere is not a folder"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("source", ["{% include 'x' %}", "{{ messages.append(1) }}", "{% if %}"])
async def test_forbidden_template_makes_the_model_unusable(tmp_path: Path, source: str, load: Load):
    folder = build_tokenizer_folder(tmp_path / "model", template=source)
    with pytest.raises(UnusableModel, match="its chat template is refused"):
        await load(folder)


async def test_template_that_refuses_the_probes_is_served(tmp_path: Path, load: Load):
    source = "{{ raise_exception('no') }}"
    folder = build_tokenizer_folder(tmp_path / "model", template=source)
    assert (await load(folder)).renderer is not None


async def test_artifact_holds_the_files_and_their_digest(folder: Path, load: Load):
    edit(folder / "generation_config.json", do_sample=False)
    model = await load(folder)
    assert hashlib.sha256(model.artifact.data).hexdigest() == model.artifact.digest
    assert b"".join(model.artifact.chunks()) == model.artifact.data
    files = msgspec.msgpack.decode(model.artifact.data, type=dict[str, bytes])
    assert sorted(files) == ["detokenizer.json", "generation_config.json", "tokenizer.json"]
    assert (await load(folder)).artifact == model.artifact


def test_a_file_on_which_the_library_panics_is_refused(folder: Path):
    edit(folder / "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": ""})
    with pytest.raises(UnusableModel, match=r"tokenizer\.json: .*charsmap"):
        build_tokenizer(read(folder))
