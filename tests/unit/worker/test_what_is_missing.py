"""What a worker says of a model's folder before it loads anything."""

from pathlib import Path

import pytest

from baton.worker.files.model_folder import what_is_missing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_folder_with_a_configuration_may_be_a_models(folder: Path) -> None:
    assert what_is_missing(str(folder)) == ""


def test_a_hub_id_is_left_to_the_hub() -> None:
    assert what_is_missing("an-owner/a-model") == ""


def test_a_folder_that_is_not_there_is_named_with_what_is_there_instead(folder: Path) -> None:
    missing = folder.parent / "modle" / "v1"
    expected = f"model {missing}: no such folder; {folder.parent} has model"
    assert what_is_missing(str(missing)) == expected


def test_a_file_is_no_folder(folder: Path) -> None:
    path = folder / "config.json"
    assert what_is_missing(str(path)) == f"model {path}: a file, not a folder"


def test_a_folder_of_something_else_is_named_with_some_of_its_content(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert what_is_missing(str(folder)) == f"model {folder}: no config.json there; it is empty"
    for number in range(10):
        (folder / f"{number}.bin").touch()
    names = ", ".join(f"{number}.bin" for number in range(8))
    expected = f"model {folder}: no config.json there; it has {names}, ..."
    assert what_is_missing(str(folder)) == expected
