"""Finds and loads the compiled kernels (`csrc/`), which `build_native.py` makes; None without them.

The library's name carries a digest of its sources, so that one that was built from others is never
loaded: rebuilding, not a version number, makes the two agree. It is plain C for ctypes and knows
no torch, but takes its threads from the OpenMP library that torch has loaded, whose pool it shares.
`BATON_CPU_ISA` names the best instruction set that it may use (one of `ISAS`): to compare, and for
machines that promise more than they have.
"""

import ctypes
import hashlib
import os
import platform
from functools import cache
from pathlib import Path

from baton.model.load.load_error import LoadError
from baton.system.compiler import built_file

SOURCES = Path(__file__).parent / "csrc"
# In the order of `Isa` in csrc/isa.h: a machine that has one has all before it.
ISAS = ("portable", "avx2", "avx512", "amx")
ISA_VARIABLE = "BATON_CPU_ISA"


def source_files() -> list[Path]:
    """Everything that is compiled or included, in a fixed order."""
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])


def library_path() -> Path:
    """The path of the library of the present sources, which may not be built yet."""
    digest = hashlib.sha256(platform.machine().encode())
    for path in [*source_files(), Path(__file__).with_name("build_native.py")]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return built_file(SOURCES, f"native-{digest.hexdigest()[:16]}.so")


@cache
def library() -> ctypes.CDLL | None:
    """The library, loaded once; None when it is not built or this system cannot load it. Raises
    LoadError."""
    if (named := os.environ.get(ISA_VARIABLE)) not in (None, *ISAS):
        raise LoadError(f"{ISA_VARIABLE} is {named!r}, and none of {', '.join(ISAS)}")
    import torch  # noqa: F401 - its OpenMP library has to be there first, to be the only one

    try:
        return ctypes.CDLL(str(library_path()))
    except OSError:
        return None


def usable_isas() -> tuple[str, ...]:
    """Instruction sets that both this machine and the library have; the last is the best."""
    loaded = library()
    return ISAS[: loaded.baton_best_isa() + 1] if loaded is not None else ()
