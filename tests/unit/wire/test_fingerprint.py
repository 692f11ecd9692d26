from pathlib import Path

import pytest

from baton.wire.fingerprint import model_fingerprint


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
