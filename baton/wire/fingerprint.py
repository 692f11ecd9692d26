"""The fingerprint of a served model: one digest over config, weights, tokenizer and chat template,
and over what an embedding model makes of its states. That of a LoRA adapter is over its two files.

Only workers with equal fingerprints are paired, and each model has its own tokenizer artifact. The
digests of weight files come from the folder's manifest (`manifest.py`). In a folder without one
they are hashed whole: once for each file on a host, whatever starts at the same time, for the
digests are kept beside the user's caches, keyed by path, size and modification time. The text files
go to the tokenizers with these digests (`model_files.py`).
"""

import fcntl
import os
from collections.abc import Iterable, Mapping
from hashlib import file_digest, sha256
from pathlib import Path

from baton.wire.manifest import FileDigest, read_manifest

FINGERPRINT_CHARS = 32
_DIGEST_CHARS = 64
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "1_Pooling/config.json",
)
TEMPLATE_FOLDER = "additional_chat_templates"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
# Larger files are looked up in the digest cache first.
_CACHE_FROM_BYTES = 64 * 1024 * 1024


# SHA-256 in hex, by the file's path in the model's folder.
FileDigests = dict[str, str]


class ChangedFile(ValueError):
    """A file is not what its manifest says; the message is one line."""


class OutsideLink(ValueError):
    """A file is a link that leads out of its model's folder; the message is one line."""


def model_fingerprint(folder: Path, *, is_verified: bool = False) -> str:
    """The fingerprint of a local model folder, FINGERPRINT_CHARS hex characters.

    Raises as `model_digests`.
    """
    return fingerprint_of(model_digests(folder, is_verified=is_verified))


def model_digests(folder: Path, *, is_verified: bool = False) -> FileDigests:
    """The digests of all files that a model's fingerprint is made of.

    `is_verified`: read all weights, and hold them against the manifest. Raises FileNotFoundError
    when the folder has no config.json, or no safetensors file, ChangedFile.
    """
    manifest = read_manifest(folder)
    known = manifest.files if manifest is not None else {}
    return {
        name: _digest(folder / name)
        if is_text(name)
        else _weights_digest(folder / name, known.get(name), is_verified)
        for name in fingerprinted_files(folder)
    }


def fingerprinted_files(folder: Path) -> list[str]:
    """The names of the files that a model's fingerprint is made of: texts, then weights.

    Raises FileNotFoundError when the folder has no config.json, or no safetensors file.
    """
    weights = sorted(path.name for path in folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json")
    if not weights:
        raise FileNotFoundError(f"{folder} has no *.safetensors file")
    templates = sorted(f"{TEMPLATE_FOLDER}/{p.name}" for p in folder.glob(f"{TEMPLATE_FOLDER}/*"))
    texts = [name for name in (*TEXT_FILES, *templates) if is_text(name)]
    return [*(name for name in texts if (folder / name).is_file()), *weights]


def is_text(name: str) -> bool:
    """Tell whether a file, by its path in the folder, is one that tokenizers get."""
    folder, slash, own_name = name.partition("/")
    is_template = bool(slash) and folder == TEMPLATE_FOLDER and own_name.endswith(".jinja")
    return name in TEXT_FILES or (is_template and "/" not in own_name)


def text_names(names: Iterable[str]) -> list[str]:
    """Those of a model's files that tokenizers get."""
    return [name for name in names if is_text(name)]


def inside(folder: Path, path: Path) -> Path:
    """Where a file of a folder is. Raises OutsideLink when that is neither in the folder nor in the
    blob store of the same download."""
    roots = [folder.resolve()]
    if folder.parent.name == "snapshots":
        roots.append(folder.resolve().parent.parent / "blobs")
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in roots):
        raise OutsideLink(f"{path} is a link that leads out of its folder")
    return real


def adapter_fingerprint(folder: Path) -> str:
    """The fingerprint of a LoRA adapter in PEFT's format, FINGERPRINT_CHARS hex characters.

    Raises FileNotFoundError when one of its files is not there.
    """
    return fingerprint_of({name: _digest(folder / name) for name in ADAPTER_FILES})


def fingerprint_of(digests: Mapping[str, str]) -> str:
    """The fingerprint of files with these digests: text files in their order, then the others."""
    texts = [name for name in TEXT_FILES if name in digests]
    total = sha256()
    for name in (*texts, *sorted(digests.keys() - set(TEXT_FILES))):
        digest = digests[name]
        total.update(f"{name}\0{digest}\n".encode())
    return total.hexdigest()[:FINGERPRINT_CHARS]


def _weights_digest(path: Path, stated: FileDigest | None, is_verified: bool) -> str:
    if is_verified:
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        if stated is not None and digest != stated.sha256:
            raise ChangedFile(f"{path} is not the file that was downloaded: its SHA-256 differs")
        return digest
    if stated is not None and stated.num_bytes == path.stat().st_size:
        return stated.sha256
    return _digest(path)


def _digest(path: Path) -> str:
    real = path.resolve()
    status = real.stat()
    if status.st_size < _CACHE_FROM_BYTES:
        return sha256(real.read_bytes()).hexdigest()
    key = sha256(f"{real}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()
    try:
        return _cached_digest(real, _cache_folder() / key)
    except OSError:
        # Without a home that can be written, each start reads the weights.
        with real.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()


def _cached_digest(path: Path, entry: Path) -> str:
    """The digest in an entry of the cache; without one it is made while others wait for it."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with entry.open("a+") as cached:
        fcntl.flock(cached, fcntl.LOCK_EX)
        cached.seek(0)
        digest = cached.read()
        if len(digest) != _DIGEST_CHARS:
            with path.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
            cached.truncate(0)
            cached.write(digest)
        return digest


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baton" / "weight-digests"
