"""`VLLM_PYTHON nixl_serve.py serve MODEL ...`: vLLM's command with its NIXL connector. A peer's
part: it imports nothing of Baton.

NIXL's package is called after a version of CUDA, and vLLM imports it without that. On CPUs the
connector binds each rank to the last core of its NUMA node: the ranks of two servers on one machine
would share that core, so it is not done. NIXL's Python package lets the thread of an agent look for
messages without a pause, which takes a core of each server: here it pauses, as an agent's own
option has it. vLLM spawns its engine, which reads this file again.
"""

import importlib
import os
import sys
from typing import Any

_PAUSE_US = 100

for _name in ("", "._api", "._bindings"):
    sys.modules[f"nixl{_name}"] = importlib.import_module(f"nixl_cu12{_name}")
os.sched_setaffinity = lambda pid, cores: None
_bindings = sys.modules["nixl._bindings"]


class _PausingAgent(_bindings.nixlAgent):  # type: ignore[name-defined,misc]
    """NIXL's agent, whose thread pauses between two looks."""

    def __init__(self, name: str, config: Any) -> None:
        config.pthrDelay = _PAUSE_US
        super().__init__(name, config)


_bindings.nixlAgent = _PausingAgent  # type: ignore[attr-defined]

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
