"""From a batch to logits: through transformers' modules, or by the fastest way a model allows."""

import gc
from typing import Protocol

import torch
from torch import nn

from baton.engine.batch import StepBatch
from baton.engine.model.attention import AttentionBackend, attach
from baton.engine.model.cpu_attention import CpuAttention
from baton.engine.model.dense import DenseForward, NotDense, dense_weights
from baton.engine.model.kv_pool import KVPool
from baton.engine.model.load import LoadedModel
from baton.engine.model.refusal import one_line_errors
from baton.engine.model.surgery import accelerate
from baton.engine.model.torch_attention import TorchAttention
from baton.wire.kv_spec import KVSpec


class ForwardPass(Protocol):
    """Computes batches over a pool."""

    def bind(self, pool: KVPool) -> None:
        """Use this pool from now on."""

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Store the batch's keys and values; float32 logits, one row for each sample row.

        They may be valid until the next call only.
        """


class ModuleForward:
    """transformers' own modules, with our attention in between."""

    def __init__(self, loaded: LoadedModel, backend: AttentionBackend) -> None:
        """Takes over `loaded.model`: its attention layers use this backend from now."""
        self._model = loaded.model
        self._backend = backend
        attach(loaded.attention_modules, backend)

    def bind(self, pool: KVPool) -> None:
        self._backend.bind(pool)

    def logits(self, batch: StepBatch) -> torch.Tensor:
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


def fastest_forward(loaded: LoadedModel) -> ForwardPass:
    """Packs the weights of `loaded.model`, whose modules stay usable, and takes the best way.

    Raises LoadError when the model itself fails.
    """
    with one_line_errors(loaded.source.name):
        accelerate(loaded.model)
    _leave_file(loaded.model)
    if CpuAttention.supports(loaded.kv_spec):
        try:
            return DenseForward(dense_weights(loaded.model, loaded.attention_forms))
        except NotDense:
            pass  # most models are not
    return ModuleForward(loaded, default_backend(loaded.kv_spec))


def _leave_file(model: nn.Module) -> None:
    """Copy what was not packed: one tensor in the mapped file keeps all of its pages resident."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    gc.collect()  # modules that were replaced refer to each other, and to the file


def default_backend(spec: KVSpec) -> AttentionBackend:
    """The fastest one that is there: compiled kernels, else plain torch."""
    return CpuAttention() if CpuAttention.supports(spec) else TorchAttention()
