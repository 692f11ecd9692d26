"""What the engine asks of a model: run one batch, return the sampled tokens.

The torch implementation is `model/torch_runner.py`; `baton.testing.fake_runner` needs no model and
notices every lost, doubled, foreign or stale block (decision D11). Sampling happens in the runner.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from baton.engine.batch import StepBatch
from baton.wire.kv_spec import KVSpec


class Runner(Protocol):
    """Owns the model and writes the KV pool; knows no sequences, queues or caches."""

    kv_spec: KVSpec
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    def bind_pool(self, pool: memoryview) -> None:
        """Use `pool` (writable, num_blocks * row_bytes bytes, shared) as the cache."""

    def run(self, batch: StepBatch) -> NDArray[np.int64]:
        """Compute all query tokens, store their KV, return one token for each of `sample_rows`.

        The arrays of `batch` are reused by the next step: keep no reference to them. An exception
        ends the core.
        """
