"""The start of a rank's process, forked from the core or spawned by it.

vLLM's own start follows. What a rank owes its core comes before it: it ends with the core, leaves
its stack when it crashes, and has what this package changes in vLLM, which a spawned process does
not inherit.
"""

import os
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import WorkerProc

from baton.system.crash_trace import leave_stack
from baton.system.parent_death import die_with_parent

# vLLM's variable: fork or spawn.
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
EXIT_CORE_DIED = 5
# Of the core, for its ranks.
_CORE_PID = "BATON_CORE_PID"

_vllm_main = WorkerProc.worker_main


def take_over_start() -> None:
    """Let ranks that this core starts from now on begin with `rank_main`."""
    os.environ[_CORE_PID] = str(os.getpid())
    WorkerProc.worker_main = staticmethod(rank_main)


def rank_main(**arguments: Any) -> None:
    """Be a rank until the core ends; `arguments` are those of vLLM's own start."""
    die_with_parent()
    if os.environ[_CORE_PID] != str(os.getppid()):
        os._exit(EXIT_CORE_DIED)  # while this process was importing vLLM
    leave_stack()
    if (
        arguments["vllm_config"].parallel_config.enable_expert_parallel
        and current_platform.is_cpu()
    ):
        from baton.engines.vllm.ranks.experts import divide_experts

        divide_experts()
    _vllm_main(**arguments)
