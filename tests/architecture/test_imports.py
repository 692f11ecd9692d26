"""Import rules: the contracts of pyproject.toml, and what a light process really loads."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIGHT = ["services.gateway", "services.quota", "services.tokenizer", "services.router"]
SERVICES = ["gateway", "quota", "tokenizer", "router", "decode_worker", "prefill_worker", "edge"]
HEAVY = ("torch", "transformers")


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("service", [*LIGHT, "services.decode_worker", "services.prefill_worker"])
def test_a_service_process_loads_no_torch(service: str) -> None:
    assert heavy_after(f"import {service}.__main__") == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_process_exports_no_metric_of_another(service: str) -> None:
    own = {f"services.{service}.instruments", "baton.runtime.instruments"}
    if service.endswith("_worker"):
        own = {"baton.worker.instruments", "baton.runtime.instruments"}
    statements = f"import sys, services.{service}.__main__"
    loaded = "[name for name in sys.modules if name.endswith('.instruments')]"
    assert set(printed(f"{statements}\nprint(*{loaded})")) <= own


def test_a_download_of_a_model_loads_no_torch() -> None:
    assert heavy_after("import baton.worker.download") == []


def test_no_unit_test_loads_torch() -> None:
    collect = ["tests/unit", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    assert heavy_after(f"import pytest; assert pytest.main({collect!r}) == 0") == []


def heavy_after(statements: str) -> list[str]:
    """What of HEAVY a new process has loaded once it has run these statements."""
    loaded = f"[name for name in {HEAVY!r} if name in sys.modules]"
    return printed(f"{statements}\nimport sys\nprint(*{loaded})")


def printed(code: str) -> list[str]:
    """The words of the last line that a new process prints when it runs this code."""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout.splitlines()[-1].split()
