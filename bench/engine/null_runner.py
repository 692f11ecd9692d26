"""A runner without a model: every row gets token 0. What is measured around it costs no model time.

A step may take a stated time, in which the processor is busy, as it would be with a model.
"""

import time

import numpy as np

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.wire.kv_spec import KVSpec

# 256 bytes a block: pools of any number of blocks fit into memory.
_SHAPES = [(1, 4, 4, "bfloat16")]


class NullRunner:
    """Notes when its runs began and ended, as long as `max_noted_runs` allows."""

    vocab_size = 32_000
    eos_token_ids: tuple[int, ...] = ()

    def __init__(
        self, block_size: int = 16, *, step_s: float = 0.0, max_noted_runs: int = 0
    ) -> None:
        self.kv_spec = KVSpec.of_layers(block_size, _SHAPES)
        self.max_model_len = 8192
        self.runs: list[tuple[float, float]] = []
        self._step_s = step_s
        self._max_noted_runs = max_noted_runs

    def bind_pool(self, pool: memoryview) -> None:
        """Nothing is stored."""

    def run(self, batch: StepBatch) -> StepResult:
        began_at = now = time.perf_counter()
        while now - began_at < self._step_s:
            now = time.perf_counter()
        if len(self.runs) < self._max_noted_runs:
            self.runs.append((began_at, now))
        return StepResult(np.zeros(len(batch.sample_rows), np.int64))
