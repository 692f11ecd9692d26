"""The download of a model from a store of objects over real HTTP, by S3's protocol."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from baton.wire.manifest import MANIFEST_FILE, read_manifest
from baton.worker.download import store as store_source
from baton.worker.download.__main__ import main
from baton.worker.download.fetch import LOCK, MARKER
from tests.kit.object_store import KEY_ID, SECRET, ObjectStore

URL = "s3://models/llama"
PART = 10_000
INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "1_Pooling/config.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "model-1.safetensors": b"1" * PART,
    "model-2.safetensors": b"2" * PART + b"3" * PART + b"4",
}
NEVER_SERVED = {"original/model.safetensors": b"o", "pytorch_model.bin": b"p", "own.py": b"code"}
OTHERS = {"llama-2/config.json": b"{}", "config.json": b"{}"}


def keys_of(names: dict[str, bytes] | set[str]) -> set[str]:
    return {f"llama/{name}" for name in names}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    own = {f"llama/{name}": content for name, content in (FILES | NEVER_SERVED).items()}
    store = ObjectStore(own | OTHERS)
    for name, value in {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_REGION": "test-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store_source, "PART_BYTES", PART)
    yield store
    store.close()


def test_the_files_of_a_model_are_fetched_and_noted_in_a_manifest(
    store: ObjectStore, tmp_path: Path
) -> None:
    assert main([URL, str(tmp_path)]) == 0
    assert store.read() == keys_of(FILES)
    assert store.num_lists > 1, "the list had one page"
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.repository == URL
    assert {name: file.sha256 for name, file in manifest.files.items()} == {
        name: sha256(content).hexdigest() for name, content in FILES.items()
    }
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES
    assert (tmp_path / MARKER).read_text() == f"{URL}\n"


def test_a_finished_download_asks_the_store_nothing(store: ObjectStore, tmp_path: Path) -> None:
    assert main([URL, str(tmp_path)]) == 0
    store.reads.clear()
    num_lists = store.num_lists
    assert main([f"{URL}/", str(tmp_path)]) == 0
    assert (store.reads, store.num_lists) == ([], num_lists)


def test_what_is_cut_or_refused_for_a_moment_is_asked_for_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.cuts["llama/model-2.safetensors"] = PART // 2
    store.refusals["llama/model-1.safetensors"] = 2
    assert main([URL, str(tmp_path)]) == 0
    assert not store.cuts
    assert not store.refusals["llama/model-1.safetensors"]
    assert (tmp_path / "model-2.safetensors").read_bytes() == FILES["model-2.safetensors"]


def test_a_download_goes_on_behind_the_parts_that_have_come(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, part = "llama/model-2.safetensors", store_source.StoreSource._content

    def fail_at_the_second(self, name: str, start: int, end: int) -> memoryview:
        if name == "model-2.safetensors" and start == PART:
            raise OSError("the pod was killed")
        return part(self, name, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(store_source.StoreSource, "_content", fail_at_the_second)
        assert main([URL, str(tmp_path)]) == 1
    assert not (tmp_path / MARKER).exists()
    assert not (tmp_path / MANIFEST_FILE).exists()
    store.reads.clear()
    assert main([URL, str(tmp_path)]) == 0
    assert store.reads == [
        (key, f"bytes={PART}-{2 * PART - 1}"),
        (key, f"bytes={2 * PART}-{2 * PART}"),
    ]
    assert (tmp_path / "model-2.safetensors").read_bytes() == FILES["model-2.safetensors"]


def test_what_has_come_counts_as_room_and_what_was_replaced_goes(
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail_at_the_third(self, name: str, start: int, end: int) -> memoryview:
        if name == "model-2.safetensors" and start == 2 * PART:
            raise OSError("the pod was killed")
        return content(self, name, start, end)

    key, content = "llama/model-2.safetensors", store_source.StoreSource._content
    with monkeypatch.context() as patch:
        patch.setattr(store_source.StoreSource, "_content", fail_at_the_third)
        assert main([URL, str(tmp_path)]) == 1
    # One byte is missing, and there is room for it.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    store.objects[key] = FILES["model-2.safetensors"][::-1]
    assert main([URL, str(tmp_path)]) == 1
    assert "GiB are missing" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*.part")), "the first parts of the old object are still there"
    store.objects[key] = FILES["model-2.safetensors"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with monkeypatch.context() as patch:
        patch.setattr(store_source.StoreSource, "_content", fail_at_the_third)
        assert main([URL, str(tmp_path)]) == 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    assert main([URL, str(tmp_path)]) == 0


def test_two_downloads_into_one_folder_do_not_mix(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main([URL, str(tmp_path)]) == 1
    assert "another download writes" in capsys.readouterr().err
    assert not store.reads
    assert main([URL, str(tmp_path)]) == 0


def test_a_file_of_another_size_is_not_sealed(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([URL, str(tmp_path)]) == 0
    (tmp_path / MARKER).unlink()
    with (tmp_path / "model-1.safetensors").open("ab") as weights:
        weights.write(b"more")
    assert main([URL, str(tmp_path)]) == 1
    assert "model-1.safetensors came damaged" in capsys.readouterr().err
    assert main([URL, str(tmp_path)]) == 0
    assert (tmp_path / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


def test_an_object_that_was_replaced_meanwhile_is_fetched_from_its_beginning(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, part = "llama/model-2.safetensors", store_source.StoreSource._content

    def replace_before_the_second(self, name: str, start: int, end: int) -> memoryview:
        if name == "model-2.safetensors" and start == PART:
            store.objects[key] = FILES["model-2.safetensors"][::-1]
        return part(self, name, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(store_source.StoreSource, "_content", replace_before_the_second)
        assert main([URL, str(tmp_path)]) == 1, "it mixed two objects"
    assert main([URL, str(tmp_path)]) == 0
    assert (tmp_path / "model-2.safetensors").read_bytes() == store.objects[key]


@pytest.mark.parametrize(
    ("url", "secret", "told"),
    [
        ("s3://others/llama", KEY_ID, "others"),
        ("s3://models/nothing-here", KEY_ID, "no *.safetensors file"),
        (URL, "AKIDOTHER", "403"),
        ("ftp://models/llama", KEY_ID, "ftp:// is none of s3://, gs://, az://"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    url: str,
    secret: str,
    told: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", secret)
    assert main([url, str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{url}: ")
    assert told in error
    assert SECRET not in error
    assert error.count("\n") == 1


def test_an_index_that_names_a_file_outside_the_folder_is_refused(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = {"weight_map": {"a": "../model.safetensors"}}
    store.objects["llama/model.safetensors.index.json"] = json.dumps(index).encode()
    assert main([URL, str(tmp_path / "model")]) == 1
    assert "../model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "model.safetensors").exists()
