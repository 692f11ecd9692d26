"""`VLLM_PYTHON nixl_serve.py serve MODEL ...`: vLLM's command with its NIXL connector. A peer's
part: it imports nothing of Baton.

NIXL's package is called after a version of CUDA, and vLLM imports it without that. On CPUs the
connector binds each rank to the last core of its NUMA node: the ranks of two servers on one machine
would share that core, so it is not done. vLLM spawns its engine, which reads this file again.
"""

import importlib
import os
import sys

for _name in ("", "._api", "._bindings"):
    sys.modules[f"nixl{_name}"] = importlib.import_module(f"nixl_cu12{_name}")
os.sched_setaffinity = lambda pid, cores: None

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
