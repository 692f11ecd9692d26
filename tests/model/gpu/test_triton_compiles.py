"""What the interpreter takes, the compiler must take too: for a GPU that is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytest.importorskip("triton", reason=needs.TRITON)

ROOT = Path(__file__).parents[3]


def test_all_kernels_compile_for_hopper_and_none_spills(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "compile_gpu_kernels.py", "90"],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 10
    assert [line for line in lines if line["spilled_bytes"]] == []
