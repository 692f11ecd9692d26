"""The names that transformers' model files define are read once for an installed version."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from transformers import models
from transformers.utils import import_utils

from baton.model.transformers_exports import keeping

MODELS = Path(models.__file__).parent
PROGRAM = f"""
import sys
opened = set()
def hook(event, args):
    path = str(args[0]) if event == "open" else ""
    if path.startswith({str(MODELS)!r}) and path.endswith(".py"):
        opened.add(path)
sys.addaudithook(hook)
import baton.model.transformers_api
print(len(opened))
"""
MODELING = """
__all__ = ["OneModel"]
@requires(backends=("torch", "scipy"))
class Other:
    pass
"""


@pytest.fixture(scope="module")
def scanner() -> ModuleType:
    """transformers' module as it is without our change."""
    spec = spec_from_file_location("transformers.utils.import_utils_again", import_utils.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / f"modeling_{name}.py").write_text(MODELING)
        (tmp_path / name / f"configuration_{name}.py").write_text('__all__ = ["Config"]\n')
    return tmp_path


def _not_asked(path: object) -> dict[str, object]:
    pytest.fail(f"{path} is read again")


def test_a_process_reads_no_model_file_that_it_does_not_import() -> None:
    def num_opened() -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100
        )
        return int(done.stdout)

    num_opened()  # the first process of an installation may read them
    assert num_opened() < 20 < len(list(MODELS.glob("*/*.py")))


def test_transformers_gets_what_it_would_have_read(scanner) -> None:
    kept = import_utils.create_import_structure_from_path(str(MODELS / "__init__.py"))
    assert kept == scanner.create_import_structure_from_path(str(MODELS))


def test_what_was_read_is_kept_for_that_version_alone(scanner, folder) -> None:
    scan = scanner.create_import_structure_from_path
    as_read = scan(folder)
    assert frozenset({"scipy", "torch"}) in as_read["one"]
    assert keeping(scan, folder, "1.0")(folder) == as_read
    assert keeping(_not_asked, folder, "1.0")(folder) == as_read
    (folder / "one" / "configuration_one.py").unlink()
    scan.cache_clear()
    assert keeping(scan, folder, "1.1")(folder) == scan(folder) != as_read


def test_a_damaged_list_is_read_again(scanner, folder) -> None:
    scan = scanner.create_import_structure_from_path
    keeping(scan, folder, "1.0")(folder)
    (kept,) = (folder / "__pycache__").iterdir()
    kept.write_text(kept.read_text()[:100])
    assert keeping(scan, folder, "1.0")(folder) == scan(folder)
    assert keeping(_not_asked, folder, "1.0")(folder) == scan(folder)


@pytest.mark.parametrize("reason", ["nothing can be written", "a version in development"])
def test_without_a_list_the_files_are_read(scanner, folder, reason) -> None:
    version = "1.0.dev0"
    if reason == "nothing can be written":
        version = "1.0"
        (folder / "__pycache__").touch()
    scan = scanner.create_import_structure_from_path
    assert keeping(scan, folder, version)(folder) == scan(folder)
    assert not list(folder.glob("__pycache__/*"))
