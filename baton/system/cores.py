"""The number of CPU cores that this process may use: its affinity and its control group."""

import os
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def num_available_cores(cpu_max: Path = _CPU_MAX) -> int:
    """The cores of this process, at least 1; a quota of 2.5 cores counts as 2."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else (os.cpu_count() or 1)
    if cpu_max.is_file():
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            num_cores = min(num_cores, int(quota) // int(period))
    return max(1, num_cores)
