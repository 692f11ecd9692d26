"""Judges a model's folder by its small files, in milliseconds, before any process starts.

It refuses only what the loader (`baton.model.load`) refuses as well, tens of seconds later; a test
holds both together. Knows neither torch nor transformers.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from baton.localstack.refusal import Refusal
from baton.model.load.served_types import (
    ENCODER_TYPES,
    OWN_ATTENTION_TYPES,
    RECURRENT_TYPES,
    SERVED_LAYER_TYPES,
    UNDECODED_METHODS,
)
from baton.system.byte_size import format_bytes

# One of them is in every folder that has a tokenizer.
_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken")
_LENGTHS = ("max_position_embeddings", "n_positions")
_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 * 2**20
# Where transformers names all types of models, in quotes.
_TYPE_LISTS = ("auto_mappings.py", "configuration_auto.py")


class FolderRefused(Refusal):
    """The folder has no model that can be served; the message names the file and what to do."""


def check(name: str, folder: Path, max_model_len: int | None = None, engine: str = "baton") -> None:
    """Refuse a folder whose model could not be loaded. Raises FolderRefused.

    What an architecture must be is asked for the engine `baton` alone: others serve other ones.
    """
    config = _config(name, folder)
    problem = next(_problems(folder, config, max_model_len, engine), None)
    if problem:
        raise FolderRefused(f"model {name}: {problem}")


def _problems(
    folder: Path, config: dict[str, Any], max_model_len: int | None, engine: str
) -> Iterator[str]:
    if engine == "baton":
        yield from _of_architecture(config)
    if problem := _of_length(config, max_model_len):
        yield problem
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        yield f"{folder} has no tokenizer (tokenizer.json); download the whole repository"
    yield from _of_weights(folder)


def _config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FolderRefused(f"model {name}: config.json cannot be read: {reason}") from None
    if not isinstance(config, dict):
        raise FolderRefused(f"model {name}: config.json is no JSON object")
    return config


def _of_architecture(config: dict[str, Any]) -> Iterator[str]:
    """Reasons in the configuration why the engine cannot serve it."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        yield "config.json has no model_type, so it is no model of transformers"
        return
    if not is_named_by_transformers(kind):
        yield (
            f"type {kind!r} needs its own Python code (auto_map), which is never run"
            if "auto_map" in config
            else f"type {kind!r} is unknown to transformers as installed; a newer one may know it"
        )
        return
    if reason := _type_problem(kind, config):
        yield f"{kind} {reason}, which is not served; docs/models.md lists what is"
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("layer_types")
    for layer in layers if isinstance(layers, list) else ():
        if layer not in SERVED_LAYER_TYPES:
            yield f"{kind} has layers of type {layer!r}, which are not served"
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method in UNDECODED_METHODS:
        yield f"quantised weights of {method!r} are not served; take the model in bfloat16 or fp8"


def is_named_by_transformers(kind: str) -> bool:
    """False if transformers' lists of types do not name this one. Does not import them, which takes
    seconds; True where they cannot be found."""
    spec = find_spec("transformers")
    roots = spec.submodule_search_locations if spec else None
    files = [Path(root) / "models" / "auto" / name for root in roots or () for name in _TYPE_LISTS]
    lists = [file.read_text() for file in files if file.is_file()]
    return not lists or any(f'"{kind}"' in text for text in lists)


def _type_problem(kind: str, config: dict[str, Any]) -> str:
    if kind in RECURRENT_TYPES:
        return "keeps a recurrent state"
    if kind in ENCODER_TYPES and not config.get("is_decoder"):
        return "is an encoder and writes no text"
    if config.get("is_encoder_decoder"):
        return "is an encoder-decoder"
    if kind in OWN_ATTENTION_TYPES:
        return "has attention that cannot be replaced"
    return ""


def _of_length(config: dict[str, Any], wanted: int | None) -> str:
    """The reason why sequences cannot be as long as is wanted; empty when they can."""
    text = config.get("text_config")
    places = [text, config] if isinstance(text, dict) else [config]
    known = [place[key] for place in places for key in _LENGTHS if isinstance(place.get(key), int)]
    if wanted is not None and known and wanted > known[0]:
        return f"--max-model-len {wanted} exceeds the model's {known[0]}; say {known[0]} or less"
    return ""


def _of_weights(folder: Path) -> Iterator[str]:
    """Weight files that are missing or cut off."""
    for file in sorted(folder.glob("*.safetensors")):
        if problem := cut_off(file):
            yield f"{file.name} {problem}; download it again"
    try:
        named = json.loads((folder / _INDEX).read_text())["weight_map"].values()
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        yield f"{_INDEX} cannot be read; download it again"
        return
    missing = sorted({name for name in named if not (folder / str(name)).is_file()})
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield f"{missing[0]}{more} is not in {folder}; download the whole repository"


def cut_off(file: Path) -> str:
    """The reason why a file of safetensors is not whole, by its header; empty when it is."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            return f"is cut off or no safetensors file ({format_bytes(size)})"
        header = opened.read(length)
    try:
        tensors = json.loads(header)
        ends = [row["data_offsets"][1] for key, row in tensors.items() if key != "__metadata__"]
        wanted = _LENGTH_BYTES + length + max(ends, default=0)
    except (ValueError, LookupError, AttributeError, TypeError):
        return "is no safetensors file"
    if size < wanted:
        return f"is cut off: {format_bytes(size)} of {format_bytes(wanted)}"
    return ""
