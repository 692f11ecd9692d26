"""Folders without tokenizer.json: the worker makes one, and it is a part of the fingerprint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from baton.model.load.tokenizer_file import converted_file, find_tokenizer_file, tokenizer_of
from baton.testing.tokenizer_folder import build_tokenizer_folder
from baton.wire.fingerprint import fingerprint_of, model_fingerprint
from baton.wire.model_files import decode_model_files, read_model_files
from services.tokenizer.model_folder import (
    UnusableModel,
    build_tokenizer,
    model_folder_of,
    read_model_folder,
)

TEXT = "so la ti <|im_end|> naïve 😀"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


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


def test_tokenizers_get_what_the_worker_made_and_it_equals_transformers(gpt2_files: Path):
    digests, made = tokenizer_of(gpt2_files)
    assert not (gpt2_files / "tokenizer.json").exists()
    files = read_model_files(gpt2_files, digests, made)
    model_fp = fingerprint_of(digests)
    assert model_fp != model_fingerprint(gpt2_files)
    got = model_folder_of(decode_model_files(files.encoded(), model_fp), "old", "", "a worker")
    theirs = AutoTokenizer.from_pretrained(gpt2_files)
    assert build_tokenizer(got).encode(TEXT).ids == theirs(TEXT)["input_ids"]


def test_two_workers_make_the_same_file(gpt2_files: Path, tmp_path: Path):
    _, made = tokenizer_of(gpt2_files)
    code = "import sys, pathlib; from baton.model.load.tokenizer_file import tokenizer_of;"
    code += "print(tokenizer_of(pathlib.Path(sys.argv[1]))[1])"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "other"), "PYTHONHASHSEED": "7"}
    said = subprocess.run(
        [sys.executable, "-c", code, str(gpt2_files)], env=env, capture_output=True, check=True
    )
    other = Path(said.stdout.decode().strip())
    assert other != made
    assert other.read_bytes() == made.read_bytes()


def test_folder_is_converted_only_once(gpt2_files: Path):
    made = converted_file("fp")
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    assert find_tokenizer_file(gpt2_files, "fp") == made
    assert made.read_text() == "{}"


def test_folder_with_nothing_to_convert_is_refused_by_name(tmp_path: Path, cache: Path):
    path = build_tokenizer_folder(tmp_path / "empty", config={"model_type": "gpt2"})
    (path / "tokenizer.json").unlink()
    digests, made = tokenizer_of(path)
    assert made is None
    assert not list(cache.rglob("*.json"))
    assert fingerprint_of(digests) == model_fingerprint(path)
    with pytest.raises(UnusableModel, match=r"no tokenizer\.json, and none can be made") as caught:
        build_tokenizer(read_model_folder(path, "empty"))
    assert str(caught.value).startswith(str(path))


def test_folder_with_the_file_needs_no_conversion(tmp_path: Path):
    path = build_tokenizer_folder(tmp_path / "new")
    digests, file = tokenizer_of(path)
    assert file == path / "tokenizer.json"
    assert fingerprint_of(digests) == model_fingerprint(path)
