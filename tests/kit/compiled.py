"""What the build of an image compiles (deploy/docker/compile_imported.py), by names of modules."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import sys
sys.path[:0] = ["deploy/docker", "."]
from compile_imported import import_for
import_for(sys.argv[1:])
print(*sys.modules)
"""


def compiled_for(*packages: str) -> set[str]:
    """For images whose processes are of these packages; each is imported in a process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *packages],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=250,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())
