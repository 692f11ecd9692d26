from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from baton.wire import fingerprint
from baton.wire.fingerprint import ChangedFile, model_fingerprint
from baton.wire.manifest import FileDigest, Manifest


def make_model(folder: Path, weights: bytes = b"w") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_equal_folders_have_equal_fingerprints_wherever_they_are(tmp_path: Path) -> None:
    one, two = make_model(tmp_path / "a"), make_model(tmp_path / "b")
    assert model_fingerprint(one) == model_fingerprint(two)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_weights_tokenizer_and_template_change_the_fingerprint(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "m")
    before = model_fingerprint(folder)
    (folder / name).write_bytes(b"other")
    assert model_fingerprint(folder) != before


def test_a_folder_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        model_fingerprint(tmp_path)


def note_manifest(folder: Path) -> None:
    files = {
        path.name: FileDigest(path.stat().st_size, sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }
    Manifest("org/model", "main", files).write(folder)


def test_the_manifest_of_a_download_changes_no_fingerprint(tmp_path: Path) -> None:
    plain, noted = make_model(tmp_path / "a"), make_model(tmp_path / "b")
    note_manifest(noted)
    assert model_fingerprint(plain) == model_fingerprint(noted)


def test_weights_of_another_size_than_the_manifest_says_are_read(tmp_path: Path) -> None:
    noted, plain = make_model(tmp_path / "a"), make_model(tmp_path / "b", b"other")
    note_manifest(noted)
    (noted / "model.safetensors").write_bytes(b"other")
    assert model_fingerprint(noted) == model_fingerprint(plain)


def test_verified_weights_must_be_those_of_the_manifest(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    note_manifest(folder)
    assert model_fingerprint(folder, is_verified=True) == model_fingerprint(folder)
    (folder / "model.safetensors").write_bytes(b"W")
    with pytest.raises(ChangedFile, match=r"model\.safetensors is not the file"):
        model_fingerprint(folder, is_verified=True)


def test_processes_that_start_together_read_large_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint, "_CACHE_FROM_BYTES", 1)
    num_reads = 0
    digest_of = fingerprint.file_digest

    def counted(file: BinaryIO, name: str) -> Any:
        nonlocal num_reads
        num_reads += file.name.endswith("model.safetensors")
        return digest_of(file, name)

    monkeypatch.setattr(fingerprint, "file_digest", counted)
    folder = make_model(tmp_path / "m")
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(model_fingerprint, [folder] * 8))
    assert num_reads == 1
    assert len(found) == 1
