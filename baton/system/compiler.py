"""The C++ compiler of this machine, and the place of what it compiles where that runs."""

import os
import shlex
import shutil
from pathlib import Path


def find_compiler() -> list[str] | None:
    """The command in `$CXX`, else that of the first compiler on the path; None without one."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    return None


def built_file(sources: Path, name: str) -> Path:
    """The place of a library that is compiled from `sources`, whether it is there yet or not.

    That is the folder `build` beside them, or the user's cache where an installed package belongs
    to somebody else (the XDG base directory specification).
    """
    beside = sources / "build" / name
    if beside.exists() or os.access(sources, os.W_OK):
        return beside
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "baton" / "build" / name
