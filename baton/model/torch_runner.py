"""Runs one batch through a model on a CPU: an implementation of `engine.Runner`.

All sequences are flattened into one row of tokens; positions and block tables keep them apart, and
only the rows to sample from reach the output layer. Knows no sequences and no queues.
"""

import numpy as np
import torch

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.model.cpu.thread_count import ThreadCount
from baton.model.forward_pass import ForwardPass, LoneTokens, ModuleForward, fastest_forward
from baton.model.load.load import LoadedModel
from baton.model.sampling.row_sampler import RowSampler
from baton.model.tensors.attention import AttentionBackend
from baton.model.tensors.kv_pool import KVPool
from baton.wire.kv_spec import KVSpec


class TorchRunner:
    """A loaded model with its attention backend; `bind_pool` comes before the first `run`."""

    kv_spec: KVSpec
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    _forward: ForwardPass

    def __init__(
        self,
        loaded: LoadedModel,
        backend: AttentionBackend | None = None,
        *,
        is_deterministic: bool = False,
    ) -> None:
        """Takes over `loaded.model`: in the fastest way there is, or as it is with `backend`.

        Deterministic: what a sequence gets does not depend on what else its steps compute.
        """
        self.kv_spec = loaded.kv_spec
        self.vocab_size = loaded.vocab_size
        self.max_model_len = loaded.max_model_len
        self.eos_token_ids = loaded.eos_token_ids
        if backend:
            forward = ModuleForward(loaded, backend)
            self._forward = LoneTokens(forward) if is_deterministic else forward
        else:
            self._forward = fastest_forward(loaded, is_deterministic=is_deterministic)
        self._sampler = RowSampler(loaded.eos_token_ids, is_deterministic=is_deterministic)
        self._threads = ThreadCount()

    def bind_pool(self, pool: memoryview) -> None:
        self._pool = KVPool(self.kv_spec, pool)
        self._forward.bind(self._pool)

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
        """Compute the batch; float32 logits, one row for each of `sample_rows`.

        They may be valid until the next call only.
        """
        # Of the pass and of all that torch does until the next one, sampling too.
        torch.set_num_threads(self._threads.next(torch.get_num_threads()))
        return self._forward.logits(batch)
