"""Folders without tokenizer.json: converted once in a child, or refused by name."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from baton.testing.tokenizer_folder import build_tokenizer_folder
from services.tokenizer import conversion
from services.tokenizer.model_folder import UnusableModel, build_tokenizer, read_model_folder

TEXT = "so la ti <|im_end|> naïve 😀"


@pytest.fixture
def gpt2_files(tmp_path: Path) -> Path:
    """A folder as older byte-level models have it: vocab.json and merges.txt."""
    folder = build_tokenizer_folder(
        tmp_path / "old",
        config={"model_type": "gpt2"},
        tokenizer_config={"tokenizer_class": "GPT2Tokenizer"},
    )
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return folder


async def test_folder_with_other_files_is_converted_and_equals_transformers(
    gpt2_files: Path, tmp_path: Path
):
    folder = read_model_folder(gpt2_files, "old")
    file = await conversion.tokenizer_file(folder, tmp_path / "cache", 110)
    assert not (gpt2_files / "tokenizer.json").exists()
    ours = build_tokenizer(folder, file)
    theirs = AutoTokenizer.from_pretrained(gpt2_files)
    assert ours.encode(TEXT).ids == theirs(TEXT)["input_ids"]


async def test_folder_is_converted_only_once(
    gpt2_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = read_model_folder(gpt2_files, "old")
    (tmp_path / f"{folder.fingerprint}.json").write_text("{}")
    monkeypatch.setattr(conversion, "CONVERTER", "no.such.module")
    file = await conversion.tokenizer_file(folder, tmp_path, 110)
    assert file.read_text() == "{}"


async def test_folder_with_nothing_to_convert_is_refused_by_name(tmp_path: Path):
    path = build_tokenizer_folder(tmp_path / "empty", config={"model_type": "gpt2"})
    (path / "tokenizer.json").unlink()
    folder = read_model_folder(path, "empty")
    with pytest.raises(UnusableModel, match="none can be made from its files") as caught:
        await conversion.tokenizer_file(folder, tmp_path / "cache", 110)
    assert str(caught.value).startswith(f"{path} has no tokenizer.json")
    assert not list((tmp_path / "cache").glob("*"))


async def test_without_transformers_the_folder_is_refused_with_the_line_that_helps(
    gpt2_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversion, "_NEEDED", ("no_such_package",))
    folder = read_model_folder(gpt2_files, "old")
    with pytest.raises(UnusableModel, match="no_such_package is not installed") as caught:
        await conversion.tokenizer_file(folder, tmp_path, 110)
    assert f"python -m {conversion.CONVERTER} {gpt2_files}" in str(caught.value)


async def test_folder_with_the_file_needs_no_conversion(tmp_path: Path):
    path = build_tokenizer_folder(tmp_path / "new")
    file = await conversion.tokenizer_file(read_model_folder(path, "new"), tmp_path / "c", 110)
    assert Tokenizer.from_file(str(file)).get_vocab_size()
