"""The manifest of a folder that nothing downloaded: of a claim, of a node, of a model's image."""

import fcntl
import os
from hashlib import sha256
from pathlib import Path
from typing import IO

import pytest

from baton.wire import fingerprint
from baton.wire.fingerprint import model_fingerprint
from baton.wire.manifest import MANIFEST_FILE, read_manifest
from baton.worker.download import noted
from baton.worker.download.__main__ import main
from baton.worker.download.fetch import LOCK, MARKER

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "model-1.safetensors": b"1" * 1000,
    "model-2.safetensors": b"2" * 3000,
}
WEIGHTS = [name for name in FILES if name.endswith(".safetensors")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_folder_with_a_manifest_is_known_without_a_read_of_its_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = model_fingerprint(folder)
    assert main(["--manifest", str(folder)]) == 0
    assert known in capsys.readouterr().out
    manifest = read_manifest(folder)
    assert manifest is not None
    assert {name: (file.num_bytes, file.sha256) for name, file in manifest.files.items()} == {
        name: (len(content), sha256(content).hexdigest()) for name, content in FILES.items()
    }
    assert model_fingerprint(folder, is_verified=True) == known
    opened: list[str] = []
    digest = fingerprint._digest
    monkeypatch.setattr(
        fingerprint, "_digest", lambda path: opened.append(path.name) or digest(path)
    )
    assert model_fingerprint(folder) == known
    assert opened
    assert not set(opened) & set(WEIGHTS)


def test_changed_files_are_read_anew_and_so_are_those_of_the_same_size(folder: Path) -> None:
    assert main(["--manifest", str(folder)]) == 0
    first = model_fingerprint(folder)
    (folder / WEIGHTS[0]).write_bytes(b"another size")
    second = model_fingerprint(folder)
    assert second != first
    (folder / WEIGHTS[0]).write_bytes(b"again size x")
    assert main(["--manifest", str(folder)]) == 0
    assert model_fingerprint(folder) not in (first, second)
    assert model_fingerprint(folder) == model_fingerprint(folder, is_verified=True)


def test_a_file_that_changes_meanwhile_leaves_no_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--manifest", str(folder)]) == 0
    read = noted.file_digest

    def read_slowly(content: IO[bytes], name: str) -> object:
        digest = read(content, name)
        if content.name.endswith(WEIGHTS[1]):  # a copy that is still under way
            os.utime(content.name, ns=(1, 1))
        return digest

    monkeypatch.setattr(noted, "file_digest", read_slowly)
    assert main(["--manifest", str(folder)]) == 1
    assert f"{WEIGHTS[1]} changed while it was read" in capsys.readouterr().err
    assert not (folder / MANIFEST_FILE).exists()


def test_a_folder_without_a_model_and_one_of_a_download_are_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of a copy whose files were changed the manifest was removed.
    (folder / MARKER).write_text("org/model@main\n")
    assert main(["--manifest", str(folder)]) == 0
    assert main(["--manifest", str(folder)]) == 1
    assert f"of a copy of it remove {MARKER} first" in capsys.readouterr().err
    (folder / MARKER).unlink()
    (folder / MANIFEST_FILE).unlink()
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--manifest", str(folder)]) == 1
        assert "another download writes into" in capsys.readouterr().err
    (folder / "config.json").unlink()
    assert main(["--manifest", str(folder)]) == 1
    assert "has no config.json" in capsys.readouterr().err
    assert main(["--manifest", str(folder / "nowhere")]) == 1
    assert not (folder / "nowhere").exists()


def test_a_download_needs_a_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([str(folder)], ["--manifest", "org/model", str(folder)]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "SOURCE" in capsys.readouterr().err
