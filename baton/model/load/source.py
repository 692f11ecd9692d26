"""Finds a model's files: a local folder, or a snapshot of a Hugging Face repository.

Only configuration, tokenizer and safetensors files are fetched; nothing that could hold code.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from baton.model.load.hub_files import FETCHED_PATTERNS, SKIPPED_PATTERNS
from baton.model.load.load_error import LoadError

LOCAL_REVISION = "local"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files of one model. `revision` is the hub's commit, or LOCAL_REVISION."""

    folder: Path
    name: str
    revision: str


def find_model(model: str) -> ModelSource:
    """Resolve a folder or a hub id, fetching the latter if need be. Raises LoadError."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return ModelSource(folder, folder.resolve().name, LOCAL_REVISION)
    if not _HUB_ID.fullmatch(model):
        raise LoadError(f"model {model}: no such folder")
    with _hub_refusals(model):
        snapshot = huggingface_hub.snapshot_download(
            model,
            allow_patterns=list(FETCHED_PATTERNS),
            ignore_patterns=list(SKIPPED_PATTERNS),
        )
    return ModelSource(Path(snapshot), model, Path(snapshot).name)


def find_config(model: str) -> Path:
    """The config.json of a folder or hub id, or the file itself. Raises LoadError."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path / "config.json"
    if path.is_file():
        return path
    if not _HUB_ID.fullmatch(model):
        raise LoadError(f"model {model}: no such folder or file")
    with _hub_refusals(model):
        return Path(huggingface_hub.hf_hub_download(model, "config.json"))


@contextmanager
def _hub_refusals(model: str) -> Iterator[None]:
    """Turn the hub's errors into a LoadError."""
    try:
        yield
    except GatedRepoError:
        raise LoadError(f"model {model}: its licence must be accepted on the hub first") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise LoadError(f"model {model}: no such folder, and no such model on the hub") from None
    except LocalEntryNotFoundError:
        reason = "no such folder, not downloaded before, and the hub cannot be reached"
        raise LoadError(f"model {model}: {reason}") from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise LoadError(f"model {model}: cannot be downloaded: {reason}") from None
