"""Compiles what a service imports, and nothing else: `python compile_imported.py PACKAGE...`.

Run while an image is built. A container with a read-only root cannot write bytecode, and would
compile at each start; bytecode of all that is installed would be as large as the sources. Importing
also proves that the image has every folder and package that the service needs. Bytecode is bound to
no modification time, so that copying between stages keeps it valid.
"""

import importlib
import pkgutil
import py_compile
import sys
from importlib.util import find_spec
from pathlib import Path

# Imported by services when their settings ask for it.
_OPTIONAL = {"kubernetes": "baton.runtime.discovery.kubernetes"}


def import_all(package: str) -> None:
    """The package and every module below it. Raises ImportError."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        importlib.import_module(module.name)


def compile_loaded() -> int:
    """Every loaded module that has a source file; returns how many. Raises PyCompileError."""
    named = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    # Some modules name a file that does not exist.
    sources = {name for name in named if name.endswith(".py") and Path(name).is_absolute()}
    for source in sources - {__file__}:
        py_compile.compile(
            source, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
    return len(sources)


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))
    for package in sys.argv[1:]:
        import_all(package)
    for requirement, module in _OPTIONAL.items():
        if find_spec(requirement):
            importlib.import_module(module)
    print(f"compiled {compile_loaded()} modules")


if __name__ == "__main__":
    main()
