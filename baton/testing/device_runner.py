"""A FakeRunner whose cache is not the shared pool, as on a GPU: blocks move through a ring.

A copy into the ring takes some polls; until then its rows keep their former content. The
"device" is ordinary memory, so transfers from and to it need only NIXL, or a test's own agent. It
may also compute beside its caller.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.page_checksum import page_checksums
from baton.testing.fake_runner import FakeRunner
from baton.wire.kv_spec import KVSpec


class HostPages:
    """A DevicePages without a device: numpy arrays of bytes."""

    def __init__(self, spec: KVSpec, rows: NDArray[np.uint8], ring_bytes: int) -> None:
        self._spec = spec
        self._rows = rows
        self._ring = np.zeros(ring_bytes, np.uint8)

    @property
    def pool(self) -> tuple[int, int]:
        return self._rows.ctypes.data, self._rows.nbytes

    @property
    def ring(self) -> tuple[int, int]:
        return self._ring.ctypes.data, self._ring.nbytes

    def place(self, ring_start: int, layer: int, block_ids: Sequence[int]) -> None:
        start, end = self._spec.page_range(0, layer)
        size = end - start
        pages = self._ring[ring_start : ring_start + size * len(block_ids)].reshape(-1, size)
        self._rows[list(block_ids), start:end] = pages

    def checksums(self, pages: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        return [self._sums(layer, block_ids) for layer, block_ids in pages]

    def _sums(self, layer: int, block_ids: Sequence[int]) -> list[int]:
        start, end = self._spec.page_range(0, layer)
        picked = np.ascontiguousarray(self._rows[list(block_ids), start:end])
        return page_checksums(picked.view(np.uint64))


class DeviceFakeRunner(FakeRunner):
    """Computes in a pool of its own, `rows`; a copy out of it ends at its `copy_polls`-th poll."""

    def __init__(self, *, copy_polls: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.rows: NDArray[np.uint8]
        self.num_copies_begun = 0
        self._copy_polls = copy_polls
        # Rows of the ring, the blocks' content after their step, and the polls that are left.
        self._copies: deque[tuple[list[int], NDArray[np.uint8], int]] = deque()

    def bind_ring(self, ring: memoryview, num_blocks: int) -> None:
        row_bytes = self.kv_spec.row_bytes
        self._ring = np.frombuffer(ring, np.uint8).reshape(-1, row_bytes)
        self.rows = np.zeros((num_blocks, row_bytes), np.uint8)
        self.bind_pool(self.rows.reshape(-1).data)

    def device_pages(self, ring_bytes: int) -> HostPages:
        return HostPages(self.kv_spec, self.rows, ring_bytes)

    def upload(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        assert len(rows) == len(block_ids)
        self.rows[list(block_ids)] = self._ring[list(rows)]

    def download(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        assert len(rows) == len(block_ids)
        self._copies.append((list(rows), self.rows[list(block_ids)], self._copy_polls))
        self.num_copies_begun += 1
        if not self._copy_polls:
            self.poll_copies()

    def poll_copies(self) -> int:
        if self._copies:
            ids, rows, num_polls = self._copies.popleft()
            if num_polls > 1:
                self._copies.appendleft((ids, rows, num_polls - 1))
            else:
                self._ring[ids] = rows
        return self.num_copies_begun - len(self._copies)


class AheadFakeRunner(DeviceFakeRunner):
    """Computes beside its caller, who gets to know a batch's tokens only when it asks for them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last = StepResult(np.empty(0, np.int64))
        # Tokens that were computed from ones that nobody else knew.
        self.num_ahead = 0

    def run(self, batch: StepBatch) -> StepResult:
        token_ids = batch.token_ids.copy()
        if batch.tokens_from is not None:
            [awaited] = np.nonzero(batch.tokens_from >= 0)
            token_ids[awaited] = self._last.tokens[batch.tokens_from[awaited]]
            self.num_ahead += len(awaited)
        self._last = super().run(replace(batch, token_ids=token_ids))
        return self._last

    def launch(self, batch: StepBatch) -> Callable[[], StepResult]:
        result = self.run(batch)
        return lambda: result
