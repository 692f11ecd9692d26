"""Import rules: the contracts of pyproject.toml, and what a light process really loads."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIGHT = ["services.gateway", "services.quota", "services.tokenizer", "services.router"]
HEAVY = ("torch", "transformers")


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("service", [*LIGHT, "services.decode_worker", "services.prefill_worker"])
def test_a_service_process_loads_no_torch(service: str) -> None:
    code = (
        f"import importlib, sys; importlib.import_module({service + '.__main__'!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "[]", result.stderr[-2000:]
