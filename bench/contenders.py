"""The engines that are measured; starts their offline runners with the same threads and pool.

Baton is always there; peers are when their environments are (`make bench-peers`), except
transformers, which Baton's own environment has.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from baton.model.cpu.native import ISA_VARIABLE

PEERS_VARIABLE = "BATON_BENCH_PEERS"
BATON = "baton"
# The name of a worker's KV pool in /proc/PID/smaps.
POOL_NAME = "baton-kv-pool"
_SCRIPTS = Path(__file__).parent / "peers"
# A shell's settings of threads must not decide a comparison: each engine has its own defaults.
_DROPPED_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "BATON_", "OTEL_")
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


# By the name that our kernels have for it: the best instruction set that oneDNN and torch may use.
_LIBRARY_ISAS = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}
ISAS = tuple(_LIBRARY_ISAS)


@dataclass(frozen=True, slots=True)
class Parity:
    """The settings that all engines get alike. `isa`: the best instruction set that they may use,
    as on a CPU that has no more; empty = all that the CPU has."""

    num_threads: int = 2
    kv_bytes: int = 4 * 2**30
    dtype: str = "bfloat16"
    isa: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of each engine's processes."""
        return {ISA_VARIABLE: self.isa, **_LIBRARY_ISAS[self.isa]} if self.isa else {}

    @property
    def kv_gib(self) -> str:
        return f"{max(1, round(self.kv_bytes / 2**30))}"


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine without a server: the command of its runner."""

    name: str
    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def peers_folder() -> Path:
    """`$BATON_BENCH_PEERS`, or a folder of the user's cache."""
    return Path(os.environ.get(PEERS_VARIABLE, Path.home() / ".cache" / "baton-peers"))


def clean_environment() -> dict[str, str]:
    """This process's environment without what would tune one engine and not the other."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED_PREFIXES)}
    return kept | _QUIET


def installed() -> list[str]:
    """Names of all that can be measured here, Baton first."""
    vllm = ["vllm"] if vllm_python().exists() else []
    return [BATON, *vllm, "transformers", "transformers-continuous"]


def offline_contender(name: str, model: Path, parity: Parity) -> Contender:
    """The runner of one engine of `installed()` with one model."""
    threads = str(parity.num_threads)
    if name == BATON:
        return Contender(name, _baton_argv(model, parity), parity.environment)
    if name == "vllm":
        script = str(_SCRIPTS / "vllm_offline.py")
        argv = [str(vllm_python()), script, str(model), parity.kv_gib, threads]
        return Contender(name, argv, vllm_environment(parity))
    mode = "continuous" if name == "transformers-continuous" else "generate"
    script = str(_SCRIPTS / "transformers_offline.py")
    argv = [sys.executable, script, str(model), mode, threads]
    return Contender(name, argv, parity.environment)


def vllm_environment(parity: Parity) -> dict[str, str]:
    """As vLLM's guide for CPUs says: preloaded OpenMP and allocator, all cores for the engine."""
    folder = peers_folder()
    patterns = ("vllm/lib/libiomp5.so", "deb/usr/lib/*/libtcmalloc_minimal.so.4")
    found = [str(path) for pattern in patterns for path in folder.glob(pattern)]
    # vLLM asks torch what the CPU has.
    hiding = {"PYTHONPATH": str(_SCRIPTS / "fewer_isas")} if parity.isa else {}
    return {
        **parity.environment,
        **hiding,
        "LD_PRELOAD": ":".join(found),
        "VLLM_CPU_KVCACHE_SPACE": parity.kv_gib,
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{parity.num_threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }


def vllm_command() -> str:
    return str(vllm_python().with_name("vllm"))


def vllm_python() -> Path:
    """The interpreter of vLLM's environment: the peers', or that of Baton's own workers."""
    own = os.environ.get("BATON_VLLM_PYTHON", ".venv-vllm/bin/python")
    found = peers_folder() / "vllm" / "bin" / "python"
    return found if found.exists() else Path(own).absolute()


def _baton_argv(model: Path, parity: Parity) -> list[str]:
    options = {
        "--model": model,
        "--dtype": parity.dtype,
        "--threads": parity.num_threads,
        "--kv-memory": parity.kv_bytes,
    }
    words = [str(word) for name, value in options.items() for word in (name, value)]
    return [sys.executable, "-m", "bench.engine.offline_runner", *words]
