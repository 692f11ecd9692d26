"""What transformers' model files define, listed once for an installed version.

transformers reads each of its model files twice while it is imported, to learn the names that they
define and the packages that these need: half a second of computing in every process, for an answer
that depends on nothing else. The list is kept as JSON beside the bytecode of the folder. Where
nothing can be written, or of a version in development, no list is kept and the files are read.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

# The module that reads the files, and its function that does it.
_SCANNER = "transformers.utils.import_utils"
_SCAN = "create_import_structure_from_path"

# By folder; in a folder by the packages that are needed, then by module: the names.
Exports = Mapping[str | frozenset[str], "Exports | Mapping[str, set[str]]"]
Scan = Callable[[str | Path], Exports]


@contextlib.contextmanager
def kept_exports() -> Iterator[None]:
    """transformers, imported in here for the first time, takes the list that is kept, or keeps
    one."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def keeping(scan: Scan, models: Path, version: str) -> Scan:
    """`scan`, which of the folder `models` keeps its answer for this version of transformers."""
    kept = models / "__pycache__" / f"baton-exports-{version}.json"

    def exports(path: str | Path) -> Exports:
        folder = Path(path).parent if os.path.isfile(path) else Path(path)
        if folder != models or "dev" in version:
            return scan(path)
        with contextlib.suppress(OSError, ValueError):
            return _decoded(json.loads(kept.read_text()))
        found = scan(path)
        with contextlib.suppress(OSError):
            _write(kept, json.dumps(_encoded(found)))
        return found

    return exports


def _write(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")
    try:
        own.write_text(text)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)


def _encoded(exports: Mapping[Any, Any]) -> list[list[Any]]:
    return [
        [sorted(key), {module: sorted(names) for module, names in value.items()}]
        if isinstance(key, frozenset)
        else [key, _encoded(value)]
        for key, value in exports.items()
    ]


def _decoded(pairs: Sequence[Sequence[Any]]) -> Exports:
    return {
        key if isinstance(key, str) else frozenset(key): _decoded(value)
        if isinstance(key, str)
        else {module: set(names) for module, names in value.items()}
        for key, value in pairs
    }


class _Finder:
    """Finds the module that reads the files, before Python's own finders do."""

    def find_spec(self, name: str, path: Sequence[str] | None, *_: object) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name == _SCANNER else None
        if found is None or found.origin is None:
            return None
        return spec_from_file_location(name, loader=_Loader(name, found.origin))


class _Loader(SourceFileLoader):
    """Lets the module keep what it has found."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        package = Path(self.path).parents[1]
        version = sys.modules["transformers"].__version__
        setattr(module, _SCAN, keeping(getattr(module, _SCAN), package / "models", version))
