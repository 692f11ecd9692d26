"""The reasons of skips: hardware that a machine lacks, or what can be added, and by which line.

Only hardware may be missing in CI: see `tools/run_tests.py`, which reads these reasons.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from baton.system.compiler import find_compiler

GPU = "needs a GPU"
LINUX = "needs Linux"
COMPILER = "needs compiled code: sudo apt-get install g++, then tools/kernels.sh .venv"
# Of the packages below, those that are for Linux are there on Linux alone.
TRITON = "needs Triton: tools/setup.sh"
NIXL = "needs NIXL: tools/setup.sh --deploy"
KUBERNETES = "needs Kubernetes' client: tools/setup.sh --deploy"
BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


# Where the programs of a cluster are built (docs/benchmarks/cluster.md), if they are.
_CLUSTER = Path(os.environ.get("BATON_CLUSTER", "~/.cache/baton-cluster")).expanduser()
JAEGER = (
    os.environ.get("BATON_JAEGER")
    or shutil.which("jaeger", path=f"{_CLUSTER}/bin")
    or shutil.which("jaeger")
)


def cpu_with(feature: str) -> str:
    return f"needs a CPU with {feature}"


def _mark(is_there: bool, reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_there, reason=reason)


linux = _mark(sys.platform == "linux", LINUX)
compiler = _mark(find_compiler() is not None, COMPILER)
nixl = _mark(importlib.util.find_spec("nixl_cu12") is not None, NIXL)
bitsandbytes = _mark(
    importlib.util.find_spec("bitsandbytes") is not None,
    "needs bitsandbytes: tools/setup.sh --deploy",
)
prometheus = _mark(
    shutil.which("prometheus") is not None and shutil.which("promtool") is not None,
    "needs Prometheus and promtool: sudo apt-get install prometheus",
)
# The wheel's is built without TLS.
REDIS_WITH_TLS = shutil.which("redis-server") or shutil.which("valkey-server")
redis_with_tls = _mark(
    REDIS_WITH_TLS is not None, "needs a Redis with TLS: sudo apt-get install redis-server"
)
# No package index has it.
jaeger = _mark(JAEGER is not None, "needs Jaeger: its program of version 2 in BATON_JAEGER")
browser = _mark(BROWSER is not None, "needs a browser: sudo apt-get install chromium")
