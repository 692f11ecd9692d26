"""Import rules: the contracts of pyproject.toml, and what a light process really loads."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ["gateway", "quota", "tokenizer", "router", "decode_worker", "prefill_worker", "edge"]
HEAVY = ("torch", "transformers")


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_process_loads_no_torch(service: str) -> None:
    assert not loaded_by_service(service).intersection(HEAVY)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_process_exports_no_metric_of_another(service: str) -> None:
    own = {f"services.{service}.instruments", "baton.runtime.instruments"}
    if service.endswith("_worker"):
        own = {"baton.worker.instruments", "baton.runtime.instruments"}
    loaded = loaded_by_service(service)
    assert {name for name in loaded if name.endswith(".instruments")} <= own


def test_a_download_of_a_model_loads_no_torch() -> None:
    sources = "import baton.worker.download.hub, baton.worker.download.store"
    program = "import baton.worker.download.__main__"
    assert not loaded_by(f"{program}; {sources}").intersection(HEAVY)


def test_no_unit_test_loads_torch() -> None:
    files = sorted((ROOT / "tests" / "unit").rglob("*.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert "tests.unit.bench.router.test_router_replay" in modules
    statements = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    assert not loaded_by(statements).intersection(HEAVY)


@cache
def loaded_by_service(service: str) -> frozenset[str]:
    """The modules of its process before it begins."""
    return loaded_by(f"import services.{service}.__main__")


def loaded_by(statements: str) -> frozenset[str]:
    """The modules that a new process has loaded once it has run these statements."""
    code = f"{statements}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return frozenset(result.stdout.splitlines()[-1].split())
