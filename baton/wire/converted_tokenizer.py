"""Where a tokenizer.json is kept that was made for a model folder without one.

Tokenizer service and workers share it: whoever comes first makes it. Knows no tokenizer.
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Of this user; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baton" / "tokenizers"


def converted_file(cache: Path, fingerprint: str) -> Path:
    """The file for a model; it may not exist yet."""
    return cache / f"{fingerprint}.json"
