"""`python -m baton.model.cpu.build_native`: compiles `csrc/` to the library of `native.py`.

Every `csrc/*.cpp` is compiled, those whose names end in the name of an instruction set with its
flags. A set that the compiler does not know (another processor, an old compiler) is left out, and
`BATON_WITH_...` says to the others which ones are there. Takes seconds and imports no torch.
"""

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from baton.model.cpu import native
from baton.system.compiler import find_compiler

EXIT_NOT_BUILT = 1
FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-exceptions"),
    *(
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wno-psabi",
        "-Wall",
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",
    ),
]
# An undefined symbol is an error now, not when the library is loaded.
LINK_FLAGS = ["-shared", "-fopenmp", "-Wl,--no-undefined"]
_AVX2 = ["-mavx2", "-mfma"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16"]
ISA_FLAGS = {"avx2": _AVX2, "avx512": _AVX512, "amx": [*_AVX512, "-mamx-tile", "-mamx-bf16"]}
NO_COMPILER = (
    "No C++ compiler found: on a CPU, attention and other layers will run in plain torch, which is "
    "several times slower. On Debian or Ubuntu: sudo apt-get install g++, then "
    f"{sys.executable} -m baton.model.cpu.build_native"
)


class BuildError(Exception):
    """The compiler refused; the message is what it said."""


def main() -> int:
    """Build what is missing, and say in one line what happened. Returns the exit code."""
    target = native.library_path()
    if target.exists():
        print(f"Compiled kernels are up to date: {target.name}")
        return 0
    compiler = find_compiler()
    if compiler is None:
        print(NO_COMPILER, file=sys.stderr)
        return EXIT_NOT_BUILT
    started = time.monotonic()
    try:
        isas = build(compiler, target)
    except (BuildError, OSError) as error:
        print(f"The kernels were not compiled; plain torch is used. {error}", file=sys.stderr)
        return EXIT_NOT_BUILT
    seconds = time.monotonic() - started
    print(f"Compiled the kernels for {', '.join(['any CPU', *isas])} in {seconds:.0f} s")
    return 0


def build(compiler: list[str], target: Path) -> list[str]:
    """Compile and link, put the library at `target` in one move and remove older ones.

    Returns the instruction sets that it has kernels for. Raises BuildError or OSError.
    """
    isas = [isa for isa, flags in ISA_FLAGS.items() if _is_known(compiler, flags)]
    units = [path for path in native.source_files() if path.suffix == ".cpp"]
    units = [unit for unit in units if (isa := isa_of(unit)) is None or isa in isas]
    defines = [f"-DBATON_WITH_{isa.upper()}" for isa in isas]
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:

        def compile_unit(unit: Path) -> str:
            output = str(Path(folder) / f"{unit.stem}.o")
            flags = FLAGS + defines + ISA_FLAGS.get(isa_of(unit) or "", [])
            _run([*compiler, *flags, "-c", str(unit), "-o", output])
            return output

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_unit, units))
        linked = Path(folder) / target.name
        _run([*compiler, *LINK_FLAGS, *objects, "-o", str(linked)])
        linked.replace(target)
    for other in target.parent.glob("native-*.so"):
        if other != target:
            other.unlink(missing_ok=True)
    return isas


def isa_of(unit: Path) -> str | None:
    """The instruction set that a unit is for; None means every machine."""
    suffix = unit.stem.rpartition("_")[2]
    return suffix if suffix in ISA_FLAGS else None


def _is_known(compiler: list[str], flags: list[str]) -> bool:
    command = [*compiler, *flags, "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{shlex.join(command)} said: {result.stderr[-2000:]}")
    if result.stderr:
        print(result.stderr, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
