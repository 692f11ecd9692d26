"""How a model turns a prompt into one vector, as the files in its folder say.

An embedding model has sentence-transformers' `modules.json`, which lists what follows on the
decoder: a pooling of the states behind the last layer, and perhaps their normalization. A reranker
classifies into one label: its vector is one number, the score of a pair of texts. A folder without
either has a model that generates text.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

MODULES_FILE = "modules.json"
# The tokens for no and yes of a reranker that has no layer of its own for scores: vLLM's name.
CLASSIFIER_TOKENS = "classifier_from_token"
_CLASSIFIER = "ForSequenceClassification"
_KINDS: dict[str, Literal["last", "mean"]] = {
    "lasttoken": "last",
    "pooling_mode_lasttoken": "last",
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
}


class UnservedPooling(ValueError):
    """A model folder asks for what is not served; the message is one line with the reason."""


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """A vector of `width` numbers: the state of the last token, or the mean over all tokens.

    `normalizes`: it is scaled to length 1. `can_shorten`: its first numbers are a vector as well,
    for any count, or for those in `lengths` where there are any. `is_score`: it is one number, from
    0 to 1.
    """

    kind: Literal["last", "mean"]
    width: int
    normalizes: bool = False
    can_shorten: bool = False
    lengths: tuple[int, ...] = ()
    is_score: bool = False


# The content of a model's file; None without the file.
ReadFile = Callable[[str], bytes | None]


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling of the model in a folder; None for a model that generates text.

    Raises UnservedPooling.
    """

    def read(name: str) -> bytes | None:
        path = folder / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnservedPooling(f"{path.name}: {str(error)[:100]}") from None

    return pooling_in(read)


def pooling_in(read: ReadFile) -> Pooling | None:
    """The same, from the files that `read` reads."""
    config = _read(read, "config.json", {})
    if str((config.get("architectures") or [""])[0]).endswith(_CLASSIFIER):
        _check_labels(config)
        return Pooling("last", 1, is_score=True)
    modules = _read(read, MODULES_FILE, [])
    if not modules:
        return None
    try:
        kinds = {str(each["type"]).rpartition(".")[2]: str(each["path"]) for each in modules}
    except (TypeError, KeyError):
        raise UnservedPooling(f"{MODULES_FILE} is not a list of modules") from None
    unknown = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Pooling" not in kinds:
        named = ", ".join(sorted(unknown)) or "no Pooling"
        raise UnservedPooling(f"{MODULES_FILE} has {named}, which is not served")
    if kinds["Pooling"] in ("", ".", "..") or "/" in kinds["Pooling"]:
        raise UnservedPooling(f"{MODULES_FILE} names a folder elsewhere")
    settings = _read(read, f"{kinds['Pooling']}/config.json", {})
    lengths = tuple(config.get("matryoshka_dimensions") or ())
    return Pooling(
        _kind_of(settings),
        _width_of(config),
        normalizes="Normalize" in kinds,
        can_shorten=bool(lengths or config.get("is_matryoshka")),
        lengths=lengths,
    )


def _check_labels(config: dict[str, Any]) -> None:
    labels = config.get("id2label")
    num_labels = len(labels) if isinstance(labels, dict) else config.get("num_labels")
    if num_labels != 1 and CLASSIFIER_TOKENS not in config:
        raise UnservedPooling(f"it classifies into {num_labels or 2} labels; only one is served")


def _kind_of(settings: dict[str, Any]) -> Literal["last", "mean"]:
    stated = settings.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else []
    modes += [name for name, on in settings.items() if name.startswith("pooling_mode_") and on]
    if len(modes) != 1 or modes[0] not in _KINDS:
        found = " and ".join(modes) or "none"
        raise UnservedPooling(f"pooling is {found}; served are lasttoken and mean")
    return _KINDS[modes[0]]


def _width_of(config: dict[str, Any]) -> int:
    inner = config.get("text_config")
    width = (inner if isinstance(inner, dict) else config).get("hidden_size")
    if not isinstance(width, int):
        raise UnservedPooling("config.json has no hidden_size")
    return width


def _read(read: ReadFile, name: str, missing: Any) -> Any:
    """The JSON value in a file, of the same type as `missing`, which stands for no file."""
    own_name = name.rpartition("/")[2]
    try:
        content = read(name)
        value = missing if content is None else json.loads(content.decode())
    except UnservedPooling:
        raise
    except (ValueError, RecursionError) as error:
        raise UnservedPooling(f"{own_name}: {str(error)[:100]}") from None
    if not isinstance(value, type(missing)):
        raise UnservedPooling(f"{own_name} is not of the form that it should have")
    return value
