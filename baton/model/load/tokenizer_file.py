"""A model folder's tokenizer.json: its own, one that was made before, or one made now."""

import os
from pathlib import Path

from baton.model.load.convert_tokenizer import convert
from baton.wire.converted_tokenizer import cache_folder, converted_file

TOKENIZER_FILE = "tokenizer.json"


def find_tokenizer_file(folder: Path, fingerprint: str) -> Path | None:
    """None when the folder's tokenizer has no such form."""
    own = folder / TOKENIZER_FILE
    if own.is_file():
        return own
    converted = converted_file(cache_folder(), fingerprint)
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
