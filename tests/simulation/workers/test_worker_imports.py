import subprocess
import sys


def test_the_fronts_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, services.decode_worker.__main__, services.prefill_worker.__main__;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
