"""Whether a model fits, asked before its weights are read: the kernel's answer is to kill."""

from pathlib import Path

from baton.engine.model.refusal import LoadError

_GIB = 1024**3
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def check_memory(name: str, weight_bytes: int, kv_bytes: int) -> None:
    """Raises LoadError, with both numbers, when the model cannot fit into free memory."""
    free = free_bytes()
    needed = weight_bytes + kv_bytes
    if free is not None and needed > free:
        raise LoadError(
            f"model {name}: needs {needed / _GIB:.1f} GiB of memory ({weight_bytes / _GIB:.1f} for "
            f"weights, {kv_bytes / _GIB:.1f} for the KV cache), {free / _GIB:.1f} GiB are free"
        )


def free_bytes() -> int | None:
    """What this process can still get, from the machine and its control group; None = unknown."""
    limits = [limit for limit in (_machine_free(), _cgroup_free()) if limit is not None]
    return min(limits, default=None)


def _machine_free() -> int | None:
    if not _MEMINFO.is_file():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_free() -> int | None:
    limit_file, used_file, parts_file = (
        _CGROUP / name for name in ("memory.max", "memory.current", "memory.stat")
    )
    if not (limit_file.is_file() and used_file.is_file() and parts_file.is_file()):
        return None
    limit = limit_file.read_text().strip()
    if limit == "max":
        return None
    parts = dict(line.split() for line in parts_file.read_text().splitlines())
    # Pages of files (a model just downloaded) count as used, but give way.
    reclaimable = sum(int(parts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return int(limit) - int(used_file.read_text()) + reclaimable
