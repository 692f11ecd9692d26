"""Compiles the kernels for CPUs at the first start of an installed package.

A clone does that in `make setup`, an image when it is built. Each library is made by the program
that `make` calls; this module knows only that one is missing.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def _libraries() -> list[tuple[str, Path]]:
    """The modules that build a library, and the libraries."""
    # They import numpy, which commands other than `baton up` do without.
    from baton.handoff import page_copy
    from baton.model.cpu import native

    return [
        ("baton.model.cpu.build_native", native.library_path()),
        ("baton.handoff.page_copy", page_copy.library_path()),
    ]


def build_missing(say: Callable[[str], None]) -> None:
    """Run each build whose library is not there. What a build says goes to `say`, a line at a time.

    Nothing fails: without a compiler, or when it refuses, plain torch and Python do the work.
    """
    for module, library in _libraries():
        if library.exists():
            continue
        command = [sys.executable, "-m", module]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as build:
            assert build.stdout is not None
            for line in build.stdout:
                say(line.rstrip())
