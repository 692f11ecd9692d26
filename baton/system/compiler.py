"""The C++ compiler of this machine, for the parts that are compiled where they run."""

import os
import shlex
import shutil


def find_compiler() -> list[str] | None:
    """The command in `$CXX`, else that of the first compiler on the path; None without one."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    return None
