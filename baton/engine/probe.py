"""A step of one token that belongs to nobody: proof that an idle core can still step.

It computes in a block beyond those that the engine hands out, so that it has room however full the
pool is, touches no cache, and appears in no figure. Knows no engine.
"""

import numpy as np

from baton.engine.batch import SampleRow, StepBatch
from baton.engine.messages import SamplingParams

_TOKEN_ID = 0
_NO_SEQUENCE = -1


def probe_batch(step: int, block_id: int) -> StepBatch:
    """One token at position 0, and the greedy one after it; the result is of no use."""
    return StepBatch(
        step=step,
        token_ids=np.array([_TOKEN_ID], np.int64),
        positions=np.zeros(1, np.int64),
        query_starts=np.array([0, 1], np.int32),
        context_lens=np.ones(1, np.int32),
        block_tables=np.array([[block_id]], np.int32),
        seq_ids=[_NO_SEQUENCE],
        sample_rows=[SampleRow(0, SamplingParams(max_tokens=1), choice=0, output_index=0)],
    )
