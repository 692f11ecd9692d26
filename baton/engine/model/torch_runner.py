"""Runs one batch through a transformers model: the torch implementation of `engine.Runner`.

All sequences are flattened into one row of tokens `[1, T]`; positions and block tables keep them
apart, and only the rows to sample from reach the output layer. Knows no sequences and no queues.
"""

import numpy as np
import torch

from baton.engine.batch import StepBatch, StepResult
from baton.engine.model.attention import AttentionBackend, attach
from baton.engine.model.cpu_attention import CpuAttention
from baton.engine.model.kv_pool import KVPool
from baton.engine.model.load import LoadedModel
from baton.engine.model.row_sampler import RowSampler
from baton.engine.model.torch_attention import TorchAttention
from baton.wire.kv_spec import KVSpec


class TorchRunner:
    """A loaded model with its attention backend; `bind_pool` comes before the first `run`."""

    kv_spec: KVSpec
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    def __init__(self, loaded: LoadedModel, backend: AttentionBackend | None = None) -> None:
        """Takes over `loaded.model`: its attention layers use this runner's backend from now."""
        self.kv_spec = loaded.kv_spec
        self.vocab_size = loaded.vocab_size
        self.max_model_len = loaded.max_model_len
        self.eos_token_ids = loaded.eos_token_ids
        self._model = loaded.model
        self._sampler = RowSampler(loaded.eos_token_ids)
        self._backend = backend if backend is not None else default_backend(loaded.kv_spec)
        attach(loaded.attention_modules, self._backend)

    def bind_pool(self, pool: memoryview) -> None:
        self._pool = KVPool(self.kv_spec, pool)
        self._backend.bind(self._pool)

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> StepResult:
        for source, target in batch.block_copies:
            self._pool.copy_block(source, target)
        if batch.masks is not None:
            batch.masks.start()
        logits = self.logits(batch)
        if not batch.sample_rows:
            return StepResult(np.empty(0, np.int64))
        masks = None if batch.masks is None else batch.masks.result()
        return self._sampler.result(logits, batch.sample_rows, masks)

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Compute the batch and return float32 logits, one row for each of `sample_rows`."""
        self._backend.begin_step(batch)
        token_rows = [row.token_row for row in batch.sample_rows]
        output = self._model(
            input_ids=torch.from_numpy(batch.token_ids)[None],
            position_ids=torch.from_numpy(batch.positions)[None],
            use_cache=False,
            logits_to_keep=torch.tensor(token_rows, dtype=torch.int64),
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()


def default_backend(spec: KVSpec) -> AttentionBackend:
    """The fastest one that is there: compiled kernels, else plain torch."""
    return CpuAttention() if CpuAttention.supports(spec) else TorchAttention()
