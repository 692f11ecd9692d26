from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from baton.worker.download import MARKER, main


def test_download_writes_its_marker_last_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def snapshot_download(repository: str, **options: Any) -> None:
        assert not (options["local_dir"] / MARKER).exists()
        calls.append({"repository": repository, **options})

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    argv = ["org/model", str(tmp_path), "--revision", "abc"]
    assert main(argv) == 0
    assert (tmp_path / MARKER).read_text() == "org/model@abc\n"
    assert main(argv) == 0
    assert len(calls) == 1
    assert "*.bin" not in calls[0]["allow_patterns"]
    assert main(["org/model", str(tmp_path), "--revision", "def"]) == 0
    assert len(calls) == 2


def test_failed_download_leaves_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def snapshot_download(repository: str, **options: Any) -> None:
        raise OSError("disk full\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert main(["org/model", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "org/model@main: disk full\n"
    assert not (tmp_path / MARKER).exists()
