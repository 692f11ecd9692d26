"""A worker's look at its model's folder before anything is loaded: what is missing is said at once,
in one line, with what is there instead."""

from itertools import islice
from pathlib import Path

CONFIG_FILE = "config.json"
_MAX_NAMES = 8
_PATH_STARTS = ("/", ".", "~")


def what_is_missing(model: str) -> str:
    """The reason why a folder cannot be a model's; empty when it may be, and for a hub id."""
    folder = Path(model).expanduser()
    if not folder.exists():
        if not model.startswith(_PATH_STARTS):
            return ""
        parent = next(each for each in folder.absolute().parents if each.exists())
        return f"model {model}: no such folder; {parent} {_content(parent)}"
    if not folder.is_dir():
        return f"model {model}: a file, not a folder"
    if not (folder / CONFIG_FILE).is_file():
        return f"model {model}: no {CONFIG_FILE} there; it {_content(folder)}"
    return ""


def _content(folder: Path) -> str:
    try:
        names = sorted(islice((path.name for path in folder.iterdir()), _MAX_NAMES + 1))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return f"has {shown}" if names else "is empty"
