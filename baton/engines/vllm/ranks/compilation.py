"""Whether vLLM compiles its steps: 1.3 to 1.6 times the tokens on CPUs (decision 0100).
vLLM keeps what it has compiled, under `VLLM_CACHE_ROOT`."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

_EAGER = "engine vllm: steps are not compiled, for there is no {}: they take longer so"


def is_compiled(choice: str, *, is_cpu: bool) -> bool:
    """`choice`: auto, on or off. auto says on stderr why not, where it could be.

    Raises ValueError for on where it cannot be.
    """
    if not is_cpu:
        if choice == "on":
            raise ValueError("compile: vLLM's steps are compiled on CPUs only")
        return False
    if choice == "off":
        return False
    missing = _missing()
    if missing and choice == "on":
        raise ValueError(f"compile: there is no {missing}")
    if missing:
        print(_EAGER.format(missing), file=sys.stderr, flush=True)
    return not missing


def _missing() -> str | None:
    """What torch's compiler for CPUs takes from the system, and this one lacks."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"C++ compiler ({compiler})"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return None if header.exists() else f"{header} (Debian: python3-dev)"
