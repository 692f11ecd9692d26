"""A model folder's tokenizer.json: its own, one that was made before, or one made now.

One that is made is kept in the user's cache, by the fingerprint of the files that it is made from.
The model folder itself is never written to.
"""

import os
from pathlib import Path

from baton.model.load.convert_tokenizer import convert
from baton.wire.fingerprint import FileDigests, fingerprint_of, model_digests
from baton.wire.model_files import TOKENIZER_FILE, with_tokenizer


def tokenizer_of(folder: Path, *, is_verified: bool = False) -> tuple[FileDigests, Path | None]:
    """The digests of a model's files, and its tokenizer.json, which is one of them; None when its
    tokenizer has no such form. Raises as `model_digests`."""
    digests = model_digests(folder, is_verified=is_verified)
    file = find_tokenizer_file(folder, fingerprint_of(digests))
    if file is not None and TOKENIZER_FILE not in digests:
        # Tokenizers get the file that was made: it is a part of what they can hold it against.
        digests = with_tokenizer(digests, file)
    return digests, file


def find_tokenizer_file(folder: Path, fingerprint: str) -> Path | None:
    """None when the folder's tokenizer has no such form."""
    own = folder / TOKENIZER_FILE
    if own.is_file():
        return own
    converted = converted_file(fingerprint)
    if converted.is_file():
        return converted
    fresh = converted.with_suffix(f".{os.getpid()}.tmp")
    try:
        converted.parent.mkdir(parents=True, exist_ok=True)
        convert(folder, fresh)
        fresh.replace(converted)
    except (OSError, ValueError):
        return None
    return converted


def converted_file(fingerprint: str) -> Path:
    """The place of a tokenizer.json that is made; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baton" / "tokenizers" / f"{fingerprint}.json"
