"""The fingerprint of a served model: one digest over config, weights, tokenizer and chat template,
and over what an embedding model makes of its states. That of a LoRA adapter is over its two files.

Only workers with equal fingerprints are paired, and each model has its own tokenizer artifact.
Weight files are hashed whole; their digests are kept in a small file beside the user's caches,
keyed by path, size and modification time, so that a restart does not read the weights twice.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from hashlib import file_digest, sha256
from pathlib import Path

FINGERPRINT_CHARS = 32
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
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
# Larger files are looked up in the digest cache first.
_CACHE_FROM_BYTES = 64 * 1024 * 1024


def model_fingerprint(folder: Path) -> str:
    """The fingerprint of a local model folder, FINGERPRINT_CHARS hex characters.

    Raises FileNotFoundError when the folder has no config.json or no safetensors file.
    """
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json")
    if not weights:
        raise FileNotFoundError(f"{folder} has no *.safetensors file")
    texts = [path for name in TEXT_FILES if (path := folder / name).is_file()]
    return _fingerprint(folder, texts + weights)


def adapter_fingerprint(folder: Path) -> str:
    """The fingerprint of a LoRA adapter in PEFT's format, FINGERPRINT_CHARS hex characters.

    Raises FileNotFoundError when one of its files is not there.
    """
    return _fingerprint(folder, [folder / name for name in ADAPTER_FILES])


def _fingerprint(folder: Path, files: Iterable[Path]) -> str:
    total = sha256()
    for path in files:
        total.update(f"{path.relative_to(folder)}\0{_digest(path)}\n".encode())
    return total.hexdigest()[:FINGERPRINT_CHARS]


def _digest(path: Path) -> str:
    real = path.resolve()
    status = real.stat()
    if status.st_size < _CACHE_FROM_BYTES:
        return sha256(real.read_bytes()).hexdigest()
    key = f"{real}:{status.st_size}:{status.st_mtime_ns}"
    cache_path = _cache_path()
    cache = _read_cache(cache_path)
    if key not in cache:
        with real.open("rb") as file:
            cache[key] = file_digest(file, "sha256").hexdigest()
        _write_cache(cache_path, cache)
    return cache[key]


def _cache_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baton" / "weight-digests.json"


def _read_cache(path: Path) -> dict[str, str]:
    try:
        cache = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return cache if isinstance(cache, dict) else {}


def _write_cache(path: Path, cache: dict[str, str]) -> None:
    # A read-only home only costs the next start a second read of the weights.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(json.dumps(cache))
        fresh.replace(path)
