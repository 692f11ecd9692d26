"""From a batch to logits: through transformers' modules, or by the fastest way a model allows."""

import gc
from typing import Protocol

import numpy as np
import torch
from torch import nn

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import SamplingParams
from baton.model.cpu.cpu_attention import CpuAttention
from baton.model.cpu.dense import DenseForward, NotDense, dense_weights
from baton.model.cpu.surgery import accelerate
from baton.model.load.load import LoadedModel
from baton.model.load.load_error import one_line_errors
from baton.model.tensors.attention import AttentionBackend, TellingAttention, attach
from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.torch_attention import TorchAttention
from baton.wire.kv_spec import KVSpec

_ONE_TOKEN = np.array([0, 1], np.int32)
# Asks for the logits of a call's only token, once, however many rows want them.
_ROW = SampleRow(0, SamplingParams(max_tokens=1), 0, 0)


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
        self._backend = TellingAttention(backend)
        attach(loaded.attention_modules, self._backend)

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


class LoneTokens:
    """Another ForwardPass with a call for each token, so that nothing else can touch its result.

    For transformers' modules: torch picks its products by the number of rows, and rounds exp, log
    and sine by where in a tensor a value lies. Alone, all shapes follow from a token's position.
    This is as slow as it sounds: a prompt takes as many calls as it has tokens.
    """

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward

    def bind(self, pool: KVPool) -> None:
        self._forward.bind(pool)

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """As of the whole batch. A sequence's tokens come in order: each sees those before it."""
        owners = np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.query_starts))
        wanted = {row.token_row for row in batch.sample_rows}
        found: dict[int, torch.Tensor] = {}
        for token, seq in enumerate(owners.tolist()):
            logits = self._forward.logits(_lone(batch, token, seq, wants_logits=token in wanted))
            if token in wanted:
                found[token] = logits.clone()
        rows = [found[row.token_row] for row in batch.sample_rows]
        return torch.cat(rows) if rows else logits


def fastest_forward(loaded: LoadedModel, *, is_deterministic: bool = False) -> ForwardPass:
    """Pack the weights of `loaded.model`, whose modules stay usable, and take the best way.

    A deterministic one gives each token the same logits whatever is computed in the same step.
    Raises LoadError when the model itself fails.
    """
    with one_line_errors(loaded.source.name):
        accelerate(loaded.model)
    _leave_file(loaded.model)
    if CpuAttention.supports(loaded.kv_spec):
        try:
            weights = dense_weights(loaded.model, loaded.attention_forms)
            return DenseForward(weights, is_deterministic=is_deterministic)
        except NotDense:
            pass  # most models are not
    forward = ModuleForward(loaded, default_backend(loaded.kv_spec))
    return LoneTokens(forward) if is_deterministic else forward


def _leave_file(model: nn.Module) -> None:
    """Copy what was not packed: one tensor in the mapped file keeps all of its pages resident."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    gc.collect()  # modules that were replaced refer to each other, and to the file


def default_backend(spec: KVSpec) -> AttentionBackend:
    """The fastest one that is there: compiled kernels, else plain torch."""
    return CpuAttention() if CpuAttention.supports(spec) else TorchAttention()


def _lone(batch: StepBatch, token: int, seq: int, *, wants_logits: bool) -> StepBatch:
    positions = batch.positions[token : token + 1]
    return StepBatch(
        step=batch.step,
        token_ids=batch.token_ids[token : token + 1],
        positions=positions,
        query_starts=_ONE_TOKEN,
        context_lens=(positions + 1).astype(np.int32),
        block_tables=batch.block_tables[seq : seq + 1],
        seq_ids=batch.seq_ids[seq : seq + 1],
        sample_rows=[_ROW] if wants_logits else [],
    )
