"""Which files of a hub's repository a model is served from.

Configuration, tokenizer and templates, and one copy of the weights: safetensors files, never what
could hold code. Knows no hub.
"""

import json
from collections.abc import Collection
from fnmatch import fnmatch

# For a hub that is asked by patterns: they cannot see which weights the index names.
FETCHED_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
# Second copies, in the format of the model's makers.
SKIPPED_PATTERNS = ("*/*.safetensors", "consolidated*.safetensors")
INDEX_FILE = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"
_TEXTS = ("*.json", "*.jinja", "*.txt", "*.model")
_TEXTS_IN_FOLDERS = ("additional_chat_templates/*.jinja", "1_Pooling/config.json")


class NoWeights(ValueError):
    """A repository has no weights that can be served; the message is one line."""


def wanted_files(names: Collection[str], index: bytes | None) -> list[str]:
    """The files to fetch, sorted; `index` is the content of INDEX_FILE, if it is among them.

    Raises NoWeights.
    """
    texts = {name for name in names if _is_text(name)}
    weights = _weights(names, index)
    if missing := sorted(weights - set(names)):
        raise NoWeights(f"{INDEX_FILE} names {missing[0]}, which the repository does not have")
    if not weights:
        raise NoWeights("the repository has no *.safetensors file: other formats are not served")
    return sorted(texts | weights)


def _weights(names: Collection[str], index: bytes | None) -> set[str]:
    if index is not None:
        try:
            return set(json.loads(index)["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NoWeights(f"{INDEX_FILE} is not an index of weights") from None
    if _SINGLE_FILE in names:
        return {_SINGLE_FILE}
    found = {name for name in names if name.endswith(".safetensors")}
    return {name for name in found if not any(fnmatch(name, each) for each in SKIPPED_PATTERNS)}


def _is_text(name: str) -> bool:
    patterns = _TEXTS_IN_FOLDERS if "/" in name else _TEXTS
    return any(fnmatch(name, pattern) for pattern in patterns)
