"""The files that a worker gives to tokenizers: whole and proved, or refused."""

from pathlib import Path

import msgspec
import pytest

from baton.testing.tokenizer_folder import build_tokenizer_folder
from baton.wire.fingerprint import fingerprint_of, model_fingerprint
from baton.wire.model_files import (
    BadModelFiles,
    ModelFiles,
    decode_model_files,
    read_model_files,
)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return read_model_files(build_tokenizer_folder(tmp_path / "m", template="hello"))


def test_files_arrive_as_they_were_read(files: ModelFiles, tmp_path: Path):
    assert decode_model_files(files.encoded(), model_fingerprint(tmp_path / "m")) == files


def test_a_lie_about_content_digest_or_fingerprint_is_refused(files: ModelFiles):
    changed = {**files.contents, "chat_template.jinja": b"evil"}
    with pytest.raises(BadModelFiles, match="not what its digest says"):
        decode_model_files(ModelFiles(files.digests, changed).encoded(), files.fingerprint)
    with pytest.raises(BadModelFiles, match="not of"):
        decode_model_files(files.encoded(), "0" * 32)
    for garbage in (b"", b"\xc1", msgspec.msgpack.encode({"digests": 3, "contents": {}})):
        with pytest.raises(BadModelFiles, match="not the files"):
            decode_model_files(garbage, files.fingerprint)


def test_a_name_that_stands_for_several_files_of_a_fingerprint_is_refused(files: ModelFiles):
    (first, digest), *others = files.digests.items()
    last = others[-1]
    joined = f"{first}\0{digest}\n" + "".join(f"{n}\0{d}\n" for n, d in others[:-1]) + last[0]
    lie = ModelFiles({joined: last[1]}, {})
    assert fingerprint_of(lie.digests) == files.fingerprint
    with pytest.raises(BadModelFiles, match="a name"):
        decode_model_files(lie.encoded(), files.fingerprint)


def test_a_file_that_changed_since_the_model_was_loaded_is_noticed(
    files: ModelFiles, tmp_path: Path
):
    (tmp_path / "m" / "chat_template.jinja").write_text("other")
    with pytest.raises(BadModelFiles, match=r"chat_template\.jinja"):
        read_model_files(tmp_path / "m", files.digests)
