"""The small files of a model, which a worker gives to tokenizers: vocabulary, templates, settings.

With them go the digests of all files that the model's fingerprint is made of, weights included. So
a reader that knows the fingerprint can tell that no byte was changed, and needs no weights.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from baton.wire.fingerprint import (
    FileDigests,
    OutsideLink,
    fingerprint_of,
    inside,
    model_digests,
    text_names,
)

TOKENIZER_FILE = "tokenizer.json"
# The largest tokenizers that are known have half of it.
MAX_MODEL_FILES_BYTES = 64 * 1024 * 1024
# A model of a thousand shards has so many files at most.
MAX_FILES = 4096
MAX_NAME_CHARS = 256
CHUNK_BYTES = 512 * 1024


class BadModelFiles(ValueError):
    """Files that are not those of their fingerprint, or too many; the message is one line."""


class ModelFiles(msgspec.Struct, frozen=True):
    """A model's small files by name, and the SHA-256 of every file of its fingerprint, by name."""

    digests: FileDigests
    contents: dict[str, bytes]

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.digests)

    @property
    def num_bytes(self) -> int:
        """The bytes of all contents."""
        return sum(map(len, self.contents.values()))

    def encoded(self) -> bytes:
        """The form in which they travel: msgpack."""
        return msgspec.msgpack.encode(self)


def read_model_files(
    folder: Path, digests: Mapping[str, str] | None = None, tokenizer_file: Path | None = None
) -> ModelFiles:
    """Read the small files of a folder. Blocking.

    `digests`: as they were when the model was loaded; else those of now. `tokenizer_file` stands
    for the tokenizer.json of a folder without one. Raises BadModelFiles, also for a file that has
    changed since; FileNotFoundError as `model_digests`.
    """
    try:
        known = dict(model_digests(folder) if digests is None else digests)
        contents = {name: _content(folder, name, tokenizer_file) for name in text_names(known)}
    except OutsideLink as error:
        raise BadModelFiles(str(error)) from None
    except OSError as error:
        if error.errno is None:  # what model_digests says
            raise
        raise BadModelFiles(f"{folder}: {error.strerror}: {error.filename}") from None
    files = ModelFiles(known, contents)
    _check(files, str(folder))
    return files


def decode_model_files(data: bytes, model_fp: str) -> ModelFiles:
    """The files of the model with this fingerprint. Raises BadModelFiles for anything else."""
    try:
        files = msgspec.msgpack.decode(data, type=ModelFiles)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadModelFiles(f"not the files of a model: {str(error)[:100]}") from None
    if len(files.digests) > MAX_FILES or not all(map(_is_entry, files.digests.items())):
        raise BadModelFiles("too many files, or a name or a digest that is none")
    if files.fingerprint != model_fp:
        raise BadModelFiles(f"these files are of {files.fingerprint}, not of {model_fp[:64]}")
    _check(files, "these files")
    return files


def _is_entry(entry: tuple[str, str]) -> bool:
    """Tell whether this is a file's name, and a digest. A name with a line break could stand for
    several files in a fingerprint."""
    name, digest = entry
    is_name = 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()
    return is_name and re.fullmatch("[0-9a-f]{64}", digest) is not None


def _check(files: ModelFiles, where: str) -> None:
    """Raise BadModelFiles unless these are all small files, and what their digests say."""
    if files.num_bytes > MAX_MODEL_FILES_BYTES:
        raise BadModelFiles(f"{where}: more than {MAX_MODEL_FILES_BYTES} bytes of small files")
    wanted = set(text_names(files.digests))
    if wanted != files.contents.keys():
        names = ", ".join(sorted(wanted ^ files.contents.keys()))
        raise BadModelFiles(f"{where}: {names[:200]} missing or not expected")
    for name, content in files.contents.items():
        if sha256(content).hexdigest() != files.digests[name]:
            raise BadModelFiles(f"{where}: {name} is not what its digest says")


def _content(folder: Path, name: str, tokenizer_file: Path | None) -> bytes:
    path = folder / name
    if name == TOKENIZER_FILE and tokenizer_file is not None and not path.is_file():
        return tokenizer_file.read_bytes()
    if (real := inside(folder, path)).stat().st_size > MAX_MODEL_FILES_BYTES:
        raise BadModelFiles(f"{path} is larger than {MAX_MODEL_FILES_BYTES} bytes")
    return real.read_bytes()


def with_tokenizer(digests: Mapping[str, str], tokenizer_file: Path) -> FileDigests:
    """The digests of a model whose tokenizer.json was made from its other files."""
    digest = sha256(tokenizer_file.read_bytes()).hexdigest()
    return {TOKENIZER_FILE: digest, **digests}


def chunks(data: bytes) -> Iterable[bytes]:
    """The parts in which encoded files travel."""
    return (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
