"""What the engine asks of a model: run one batch, return the sampled tokens.

The torch implementation is `model/torch_runner.py`. FakeRunner, below, makes token i a hash of
(tokens so far, seed, choice, i) and writes into each KV slot a pattern that depends on all tokens
up to there, so that any lost, doubled, foreign or stale block shows at once (decision D11).
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
        """Compute all query tokens, store their KV, return one token for each of `sample_rows`."""
