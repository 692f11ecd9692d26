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
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

# Imported by services while they run, by the package that they need for it.
_LATER = {
    "grpc": ("grpc._channel",),
    "llguidance": ("llguidance.gbnf_to_lark",),
    "kubernetes": (
        "baton.runtime.discovery.kubernetes",
        "kubernetes.aio.client.api.discovery_v1_api",
    ),
}
_WORKER = "baton.worker"


def import_for(packages: Sequence[str]) -> None:
    """All that processes of these packages import, at their start and later. Raises ImportError."""
    for package in packages:
        import_all(package)
    for requirement, modules in _LATER.items():
        if find_spec(requirement):
            for module in modules:
                importlib.import_module(module)
    if _WORKER in packages:
        load_a_model()


def import_all(package: str) -> None:
    """The package and every module below it. Raises ImportError."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        importlib.import_module(module.name)


def load_a_model() -> None:
    """Of torch, transformers and sympy, a core imports 500 modules when it makes its model."""
    core_main = importlib.import_module(f"{_WORKER}.core_main")
    demo_model = importlib.import_module("baton.demo_model")
    core_main.build_engine(core_main.parse_options(["--model", str(demo_model.demo_model_path())]))


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
    import_for(sys.argv[1:])
    print(f"compiled {compile_loaded()} modules")


if __name__ == "__main__":
    main()
