"""The place of a tokenizer.json that was made for a model folder without one.

Tokenizer service and workers share it: the first process to need it makes it. Knows no tokenizer.
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """This user's folder of converted tokenizers; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baton" / "tokenizers"


def converted_file(cache: Path, fingerprint: str) -> Path:
    """The file of a model; it may not exist yet."""
    return cache / f"{fingerprint}.json"
