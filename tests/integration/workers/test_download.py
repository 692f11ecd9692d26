"""The download of a model from a hub over real HTTP, with what hubs and networks do."""

import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from baton.wire.fingerprint import model_fingerprint
from baton.wire.manifest import MANIFEST_FILE, read_manifest
from baton.worker.download.__main__ import main
from baton.worker.download.fetch import MARKER
from tests.kit.hub import LARGE_BYTES, Hub

INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
WEIGHTS = {"model-1.safetensors", "model-2.safetensors"}
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "model-1.safetensors": b"1" * LARGE_BYTES,
    "model-2.safetensors": b"2" * 3 * LARGE_BYTES,
}
NEVER_SERVED = {
    "original/model.safetensors": b"o" * LARGE_BYTES,
    "original/params.json": b"{}",
    "consolidated.safetensors": b"c" * LARGE_BYTES,
    "pytorch_model.bin": b"p" * LARGE_BYTES,
    "modeling_own.py": b"code",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(FILES | NEVER_SERVED)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    # Of what is cut in the middle, the library keeps whole chunks.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", LARGE_BYTES // 10)
    yield hub
    hub.close()


def test_what_the_index_names_is_fetched_and_noted_in_a_manifest(hub: Hub, tmp_path: Path) -> None:
    assert main(["org/model", str(tmp_path)]) == 0
    assert hub.fetched() == set(FILES)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert (manifest.repository, manifest.revision) == ("org/model", hub.commit)
    assert {name: file.sha256 for name, file in manifest.files.items()} == {
        name: sha256(content).hexdigest() for name, content in FILES.items()
    }
    assert (tmp_path / MARKER).read_text() == "org/model@main\n"


def test_a_finished_download_asks_the_hub_nothing(hub: Hub, tmp_path: Path) -> None:
    assert main(["org/model", str(tmp_path)]) == 0
    hub.requests.clear()
    assert main(["org/model", str(tmp_path)]) == 0
    assert not hub.requests


def test_one_file_of_weights_is_enough_without_an_index(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors.index.json"]
    hub.files["model.safetensors"] = b"w"
    assert main(["org/model", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {"model.safetensors"}


def test_an_interrupted_download_keeps_the_files_that_are_there(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.damaged.add("model-2.safetensors")
    assert main(["org/model", str(tmp_path)]) == 1
    assert "model-2.safetensors came damaged" in capsys.readouterr().err
    assert not (tmp_path / MARKER).exists()
    assert not (tmp_path / MANIFEST_FILE).exists()
    hub.damaged.clear()
    hub.requests.clear()
    assert main(["org/model", str(tmp_path)]) == 0
    assert hub.fetched() == {"model-2.safetensors"}


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cuts["model-2.safetensors"] = LARGE_BYTES
    hub.refusals["/cdn/model-1.safetensors"] = 1
    assert main(["org/model", str(tmp_path)]) == 0
    assert hub.ranges == [f"bytes={LARGE_BYTES}-"]
    assert (tmp_path / "model-2.safetensors").read_bytes() == FILES["model-2.safetensors"]


def test_too_little_room_is_told_before_weights_are_fetched(
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    assert main(["org/model", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "GiB are missing" in told
    assert told.count("\n") == 1
    assert not hub.fetched() & WEIGHTS


def test_a_hub_that_tells_no_sizes_is_trusted_for_them(hub: Hub, tmp_path: Path) -> None:
    hub.tells_sizes = False
    assert main(["org/model", str(tmp_path)]) == 0
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


def test_what_the_library_keeps_of_cut_files_counts_as_room(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(map(len, FILES.values())) - len(FILES["model.safetensors.index.json"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 5000))
    assert main(["org/model", str(tmp_path)]) == 1
    kept = tmp_path / ".cache/huggingface/download/of-a-cut-connection.incomplete"
    kept.write_bytes(b"1" * 5000)
    assert main(["org/model", str(tmp_path)]) == 0


def test_another_revision_leaves_no_weights_of_the_last_one(hub: Hub, tmp_path: Path) -> None:
    assert main(["org/model", str(tmp_path)]) == 0
    hub.files = {"config.json": b"{}", "model.safetensors": b"w"}
    hub.commit = "f" * 40
    assert main(["org/model", str(tmp_path), "--revision", "next"]) == 0
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {"model.safetensors"}


def test_the_fingerprint_of_a_download_reads_no_weights(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["org/model", str(tmp_path)]) == 0
    known = model_fingerprint(tmp_path)
    for name in WEIGHTS:
        (tmp_path / name).write_bytes(b"?" * len(FILES[name]))
    assert model_fingerprint(tmp_path) == known
    (tmp_path / MANIFEST_FILE).unlink()
    assert model_fingerprint(tmp_path) != known


def test_a_repository_without_safetensors_is_refused_by_name(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"p"}
    assert main(["org/model", str(tmp_path)]) == 1
    assert "no *.safetensors file" in capsys.readouterr().err
