"""The engine's port to a model: run one batch, return the sampled tokens.

The torch implementation is `model/torch_runner.py`; `baton.testing.fake_runner` needs no model and
notices every lost, doubled, foreign or stale block (decision 0023). Sampling happens in the runner.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.wire.kv_spec import KVSpec
from baton.wire.pooling import Pooling


class Runner(Protocol):
    """Owns the model and writes the KV pool; knows no sequences, queues or caches."""

    kv_spec: KVSpec
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    def bind_pool(self, pool: memoryview) -> None:
        """Use `pool` (writable, num_blocks * row_bytes bytes, shared) as the cache; a StagingRunner
        makes one as large."""

    def run(self, batch: StepBatch) -> StepResult:
        """Copy blocks, compute all query tokens, store their KV; one result per sample row.

        The arrays of `batch` are reused by the next step: keep no reference to them. An exception
        ends the core.
        """


@runtime_checkable
class StagingRunner(Protocol):
    """A runner with a cache of its own; blocks are handed over through a ring in the shared pool.

    Between two runs, and beside steps that were launched. All copies and steps are in the order of
    these calls for the cache.
    """

    def bind_ring(self, ring: memoryview, num_blocks: int) -> None:
        """Make a cache of `num_blocks`, and use `ring` (writable, whole rows, shared)."""

    def upload(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """From rows of the ring into blocks of the cache. The rows are read when this returns."""

    def download(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        """Begin to copy blocks, as the runs so far leave them, into rows of the ring."""

    @property
    def num_copies_begun(self) -> int:
        """The number of copies that all downloads so far have begun; they end in order."""

    def poll_copies(self) -> int:
        """The number of copies that have ended: their rows are filled. Does not wait."""


@runtime_checkable
class AheadRunner(Protocol):
    """A runner that computes beside its caller, in the order of the launches (decision 0073)."""

    def launch(self, batch: StepBatch) -> Callable[[], StepResult]:
        """As `run`, without waiting: the call that it returns waits for the result.

        The batch is of plain decodes: one token of each sequence, and a row that samples the next
        one from its logits alone, without a mask, a history or logprobs. Of two batches under way
        the second one's `tokens_from` names rows of the first.
        """


@runtime_checkable
class PoolingRunner(Protocol):
    """A runner whose model gives vectors: it answers the batch's `pooled_spans`.

    It samples nothing. None: the model behind it generates text all the same.
    """

    pooling: Pooling | None
