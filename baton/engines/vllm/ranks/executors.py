"""The ranks of a core, which compute: one in its own process, or several, in a process each.

Adds to vLLM's executors what the engine needs of its ranks besides: the staging ring, the masks of
grammars, the first tokens of choices. Ranks never outlive their core: the kernel ends them with it.
Nor does a core outlive a rank: without one the others would wait for it for ever.
"""

import os
import re
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from baton.engine.protocol.batch import RowLogprobs
from baton.engines.vllm.ranks.draft_check import check_drafts
from baton.engines.vllm.ranks.rank_main import take_over_start
from baton.engines.vllm.row_choice import EXTRA_KEY, RowOptions
from baton.system.memory_file import map_memory_file
from baton.system.parent_death import die_with_parent

EXIT_RANK_DIED = 4
_SHARED_MEMORY = "/dev/shm/"

RowMasks = Mapping[str, NDArray[np.int32] | None]
FirstTokens = dict[int, tuple[int, RowLogprobs | None]]


class Ranks:
    """What both executors have in common. `masks_of_step` is set by the engine."""

    collective_rpc: Callable[..., Any]

    def __init__(self, vllm_config: Any) -> None:
        self.masks_of_step: Callable[[], RowMasks] = dict
        self.num_copies_begun = self._num_copies_ended = 0
        self._has_copies_beside = False
        super().__init__(vllm_config)  # type: ignore[call-arg]

    def _init_executor(self) -> None:
        super()._init_executor()  # type: ignore[misc]
        self.collective_rpc(_forget_store)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Sample within the masks, which were worked out while the ranks computed."""
        if masks := self.masks_of_step():
            self.collective_rpc(_set_masks, args=(masks,))
        return super().sample_tokens(grammar_output, non_block)  # type: ignore[misc]

    def bind_ring(self, pool_fd: int, num_bytes: int, num_rows: int) -> None:
        """Copy blocks that are handed over through this ring."""
        # Ranks that were spawned have not inherited the descriptor.
        file = f"/proc/{os.getpid()}/fd/{pool_fd}"
        are_beside = self.collective_rpc(_bind_ring, args=(file, num_bytes, num_rows))
        self._has_copies_beside = any(are_beside)

    def execute_model(self, scheduler_output: Any, *args: Any, **options: Any) -> Any:
        """Run a step, which begins to copy what it makes final."""
        if self._has_copies_beside and scheduler_output.kv_connector_metadata.exports:
            self.num_copies_begun += 1
        return super().execute_model(scheduler_output, *args, **options)  # type: ignore[misc]

    def poll_copies(self) -> int:
        """As `report_queue.Copies.poll_copies`; they have ended when all ranks' have."""
        if self._num_copies_ended < self.num_copies_begun:
            self._num_copies_ended = min(self.collective_rpc(_num_saved))
        return self._num_copies_ended

    def probe(self) -> None:
        """Compute one token that nobody gets, and wait until it is computed."""
        self.collective_rpc(_probe)

    def check_drafts(self) -> None:
        """Let the ranks take drafts."""
        self.collective_rpc(check_drafts)

    def first_tokens(self, name: str) -> FirstTokens:
        """What was sampled for the further choices of a request: all ranks choose alike."""
        found: list[FirstTokens] = self.collective_rpc(_first_tokens, args=(name,))
        return found[0]


class OneRank(Ranks, UniProcExecutor):  # type: ignore[misc]
    """Computes in the core's own process."""


class SeveralRanks(Ranks, MultiprocExecutor):  # type: ignore[misc]
    """Computes in processes of the core: forked ones have its modules and start in seconds, on GPUs
    they are spawned, since CUDA cannot be forked. `on_fork` was called before."""

    def _init_executor(self) -> None:
        take_over_start()
        # For sockets, whose paths must be short.
        folder = tempfile.mkdtemp(prefix="baton-ranks-", dir=_SHARED_MEMORY)
        os.environ["VLLM_RPC_BASE_PATH"] = folder
        try:
            super()._init_executor()
            for queue in (self.rpc_broadcast_mq, *self.response_mqs):
                queue.buffer.shared_memory.unlink()
            _forget_names([rank.proc.pid for rank in self.workers])
        finally:
            shutil.rmtree(folder)

    def start_worker_monitor(self, inline: bool = False) -> None:
        """End this process as soon as a rank has ended."""
        ranks = [rank.proc for rank in self.workers]
        Thread(target=_end_with_the_first, args=(ranks,), daemon=True, name="rank-watch").start()


def on_fork(leave_front: Callable[[], None]) -> None:
    """Have each process that is forked from now on end with this one, and leave the front to it."""
    os.register_at_fork(after_in_child=leave_front)
    os.register_at_fork(after_in_child=die_with_parent)


def _end_with_the_first(ranks: Sequence[Any]) -> None:
    ended, _, _ = select.select([rank.sentinel for rank in ranks], (), ())
    for number, rank in enumerate(ranks):
        if rank.sentinel in ended:
            rank.join()
            print(f"rank {number} has ended with {rank.exitcode}", file=sys.stderr, flush=True)
    os._exit(EXIT_RANK_DIED)


def _forget_names(pids: Sequence[int]) -> None:
    """Remove the names of the memory that ranks share, once all have it mapped: it is freed then
    with the last of them, however they end."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    for name in set(re.findall(f"{_SHARED_MEMORY}(.*[^)])$", maps, re.MULTILINE)):
        os.unlink(_SHARED_MEMORY + name)


# In a rank. `worker` is vLLM's.


def _forget_store(worker: Any) -> None:
    """Remove the file in which the ranks found each other."""
    Path(worker.distributed_init_method.removeprefix("file://")).unlink(missing_ok=True)


def _bind_ring(worker: Any, file: str, num_bytes: int, num_rows: int) -> bool:
    pool_fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    ring = memoryview(map_memory_file(pool_fd, num_bytes))
    os.close(pool_fd)
    is_beside: bool = get_kv_transfer_group().bind_ring(ring, num_rows)
    return is_beside


def _num_saved(worker: Any) -> int:
    num_saved: int = get_kv_transfer_group().num_saved()
    return num_saved


def _probe(worker: Any) -> None:
    worker.execute_dummy_batch()
    if worker.device.type != "cpu":
        torch.accelerator.synchronize()


def _set_masks(worker: Any, masks: RowMasks) -> None:
    for name, mask in masks.items():
        _options_of(worker, name).mask = mask


def _first_tokens(worker: Any, name: str) -> FirstTokens:
    return _options_of(worker, name).first_tokens


def _options_of(worker: Any, name: str) -> RowOptions:
    options: RowOptions = worker.model_runner.requests[name].sampling_params.extra_args[EXTRA_KEY]
    return options
