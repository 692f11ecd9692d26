"""Without a GPU, Triton's kernels are interpreted: it reads this once, when it is imported."""

import os
from pathlib import Path

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
