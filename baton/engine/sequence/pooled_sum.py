"""One sequence's states as they are added up to its vector, from chunk to chunk."""

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.batch import PooledSpan
from baton.wire.pooling import Pooling


class PooledSum:
    """The sum over the tokens that a vector is made of: all of them, or the last one."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._sum = np.zeros(pooling.width, np.float64)
        self._num_tokens = 0

    @property
    def takes_all(self) -> bool:
        """Every token has to be computed: none may come from the prefix cache."""
        return self._pooling.kind == "mean"

    def span(self, first_row: int, num_tokens: int, *, completes: bool) -> PooledSpan | None:
        """The tokens of a step that count, of those that the sequence computes in it."""
        end_row = first_row + num_tokens
        if self.takes_all:
            return PooledSpan(first_row, end_row)
        return PooledSpan(end_row - 1, end_row) if completes else None

    def add(self, states: NDArray[np.float32], first_token: int, num_tokens: int) -> None:
        """Add the states of these tokens. At token 0 the sequence begins, perhaps again."""
        if first_token == 0 or not self.takes_all:
            self._sum[:] = 0
            self._num_tokens = 0
        self._sum += states
        self._num_tokens += num_tokens if self.takes_all else 1

    def vector(self) -> bytes:
        """The vector, float32 little-endian, once all tokens are computed."""
        vector = self._sum / self._num_tokens
        if self._pooling.is_score:
            vector = 1 / (1 + np.exp(-vector))
        if self._pooling.normalizes:
            vector /= max(float(np.linalg.norm(vector)), 1e-12)
        return vector.astype("<f4").tobytes()
