"""The machine of a run: CPU, versions, and the CPU time of all other processes. Linux only."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

from baton.system.cpu_wait import thread_times

_PACKAGES = ("baton-serving-core", "torch", "transformers", "tokenizers", "numpy")


def describe_machine() -> dict[str, object]:
    """CPU, cores, memory, Python and package versions; no host names or paths."""
    return {
        "cpu": _cpu_name(),
        "cpu_features": _cpu_features(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }


class CpuWatch:
    """CPU seconds that neither this process nor these process trees used, since it was made."""

    def __init__(self, *tree_pids: int) -> None:
        self._pids = tree_pids
        self._busy_s = _machine_busy_s()
        self._own_s = self._ours_s()

    def others_s(self) -> float:
        """Includes what the hypervisor gave to other machines (steal)."""
        return max(0.0, _machine_busy_s() - self._busy_s - (self._ours_s() - self._own_s))

    def _ours_s(self) -> float:
        own = os.times()
        return own.user + own.system + sum(map(tree_cpu_s, self._pids))


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its living descendants."""
    total = 0.0
    for process in process_tree(pid):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def tree_wait_s(pid: int) -> float:
    """Seconds for which the threads of a process and its living descendants could have run and had
    no core, all added."""
    return sum(times.waited_s for _, times in thread_times(pid))


def tree_memory_bytes(pid: int, without: str) -> tuple[int, int]:
    """Resident bytes of a process tree: (all, those of mappings whose name has `without`).

    Proportional set sizes: memory that processes share counts once.
    """
    all_bytes = named_bytes = 0
    for process in process_tree(pid):
        try:
            smaps = Path(f"/proc/{process.pid}/smaps").read_text()
        except OSError:
            continue
        in_all, in_named = _proportional_bytes(smaps.splitlines(), without)
        all_bytes += in_all
        named_bytes += in_named
    return all_bytes, named_bytes


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants that still live."""
    try:
        root = psutil.Process(pid)
        return living([root, *root.children(recursive=True)])
    except psutil.NoSuchProcess:
        return []


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended. One that is not reaped has: containers often have no init."""
    return [process for process in processes if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _proportional_bytes(smaps: Iterable[str], named: str) -> tuple[int, int]:
    all_bytes = named_bytes = 0
    is_named = False
    for line in smaps:
        words = line.split()
        if words and not words[0].endswith(":"):
            is_named = named in line
        elif line.startswith("Pss:"):
            size = int(words[1]) * 1024
            all_bytes += size
            named_bytes += size * is_named
    return all_bytes, named_bytes


def _machine_busy_s() -> float:
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _cpu_name() -> str:
    return next(iter(_cpu_info("model name")), platform.processor())


def _cpu_features() -> list[str]:
    """Those that matrix products and attention kernels choose by."""
    flags = next(iter(_cpu_info("flags")), "").split()
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return [name for name in wanted if name in flags]


def _cpu_info(field: str) -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith(field)]
