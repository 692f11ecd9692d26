"""The models that a local stack serves: the bundled demo model, a folder, or a Hugging Face id; and
the LoRA adapters of one.

An id is downloaded once, before anything starts, so that every process reads the same files.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.demo_model import demo_model_path
from baton.localstack.refusal import Refusal
from baton.model.load.hub_files import FETCHED_PATTERNS, SKIPPED_PATTERNS
from baton.wire.fingerprint import ADAPTER_FILES
from baton.wire.limits import ADAPTER_RANKS

DEMO_MODEL = "baton-demo"
_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")


class ModelNotFound(Refusal):
    """A model is not there or not usable; the message is one clear line."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model on this machine: the name that clients use, and its folder."""

    name: str
    folder: Path

    @property
    def weight_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


def resolve(names: list[str]) -> list[LocalModel]:
    """The models that `--model` names; the demo model when it names none.

    Raises ModelNotFound.
    """
    models = [_resolve_one(name) for name in names or [DEMO_MODEL]]
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise ModelNotFound(f"two models would be called {model.name!r}: rename a folder")
        seen.add(model.name)
    return models


def resolve_adapters(entries: list[str], taken: str) -> dict[str, Path]:
    """The folders that `--lora name=PATH` names, by name; none may have the `taken` name.

    Raises ModelNotFound.
    """
    adapters: dict[str, Path] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        folder = Path(path).expanduser().resolve()
        if not path or "/" in name or name[:1] in ("", "."):
            raise ModelNotFound(f"--lora {entry!r}: say NAME=FOLDER")
        if name == taken or name in adapters:
            raise ModelNotFound(f"--lora {entry!r}: {name} is the name of another model")
        if missing := [each for each in ADAPTER_FILES if not (folder / each).is_file()]:
            raise ModelNotFound(f"--lora {entry!r}: {folder} has no {missing[0]}")
        adapters[name] = folder
    return adapters


def largest_rank(adapters: Iterable[Path]) -> int:
    """The rank that workers must take for all of these adapters, as vLLM counts ranks.

    Raises ModelNotFound.
    """
    largest = 1
    for folder in adapters:
        try:
            largest = max(largest, int(json.loads((folder / ADAPTER_FILES[0]).read_text())["r"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ModelNotFound(f"adapter {folder}: its config has no rank ({error})") from None
    wide_enough = [rank for rank in ADAPTER_RANKS if rank >= largest]
    if not wide_enough:
        raise ModelNotFound(f"an adapter has rank {largest}; at most {ADAPTER_RANKS[-1]} is served")
    return wide_enough[0]


def link_adapters(folder: Path, adapters: Mapping[str, Path]) -> None:
    """Make the folder that workers look at, with these adapters and no others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for link in folder.iterdir():
        if link.is_symlink():
            link.unlink()
    for name, target in adapters.items():
        (folder / name).symlink_to(target)


def _resolve_one(name: str) -> LocalModel:
    if name == DEMO_MODEL:
        return LocalModel(name, demo_model_path())
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"model {name!r}: the folder has no config.json")
        if not list(folder.glob("*.safetensors")):
            raise ModelNotFound(f"model {name!r}: the folder has no *.safetensors file")
        return LocalModel(folder.resolve().name, folder.resolve())
    if not _HUB_ID.match(name) or name.startswith((".", "/")):
        raise ModelNotFound(f"model {name!r}: not a folder, and not a Hugging Face id (owner/name)")
    return LocalModel(name, _download(name))


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(
            name,
            allow_patterns=list(FETCHED_PATTERNS),
            ignore_patterns=list(SKIPPED_PATTERNS),
        )
        return Path(snapshot)
    except LocalEntryNotFoundError as error:
        raise ModelNotFound(
            f"model {name!r}: not in the local cache, and the hub cannot be reached"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else "failed"
        raise ModelNotFound(f"model {name!r}: {first_line}") from error
