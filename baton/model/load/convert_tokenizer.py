"""Writes a model folder's tokenizer as tokenizer.json, from whatever files it has.

Offline, and without running code that comes with the model.
"""

import os
from pathlib import Path


def convert(folder: Path, target: Path) -> None:
    """Raises ValueError when there is not a fast tokenizer for these files."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except (OSError, ImportError, TypeError, RuntimeError, KeyError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} has no form as tokenizer.json")
    if backend.get_vocab_size(with_added_tokens=False) == 0:
        raise ValueError("no vocabulary was found in its files")
    backend.save(str(target))
