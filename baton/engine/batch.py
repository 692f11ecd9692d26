"""One step's work as flat arrays, the only thing that a runner sees. No torch, no sequences."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton.engine.messages import SamplingParams


@dataclass(slots=True)
class SampleRow:
    """One token to sample: from the last scheduled token of batch sequence `seq_row`."""

    seq_row: int
    params: SamplingParams
    choice: int
    # Index of the new token among the output tokens of its choice: the noise counter.
    output_index: int


@dataclass(slots=True)
class StepBatch:
    """Sequences of a step, flattened; S sequences, T tokens, tables padded to B blocks.

    Decodes and prefill chunks are alike: sequence s computes query tokens
    `query_starts[s]:query_starts[s + 1]`, whose positions end at `context_lens[s] - 1`.
    """

    step: int
    token_ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [T]
    query_starts: NDArray[np.int32]  # [S + 1]
    context_lens: NDArray[np.int32]  # [S], tokens in the cache after this step
    block_tables: NDArray[np.int32]  # [S, B], padded with -1
    seq_ids: list[int]  # [S], for diagnosis only
    sample_rows: list[SampleRow]
