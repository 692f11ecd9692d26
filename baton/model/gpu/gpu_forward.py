"""From a step's inputs on a device to logits: through transformers' modules, or without them."""

from typing import Protocol

import torch

from baton.model.gpu.step_inputs import StepInputs
from baton.model.gpu.triton.attention_backend import TritonAttention, Tuning
from baton.model.gpu.triton.dense_forward import TritonDense
from baton.model.load.load import LoadedModel
from baton.model.tensors.attention import AttentionBackend, attach
from baton.model.tensors.kv_pool import KVPool


class DeviceForward(Protocol):
    """Computes what its StepInputs hold, over a pool; waits for nothing."""

    def bind(self, pool: KVPool) -> None:
        """Use this pool from now on."""

    def logits(self, num_tokens: int, rows: torch.Tensor | None) -> torch.Tensor:
        """Store the keys and values of the first `num_tokens` tokens; the logits after `rows`.

        `rows` (int64, flat tokens) None = all. `[num_rows, num_logits]` in the model's dtype.
        """


class DeviceModules:
    """transformers' own modules, with our attention in between."""

    def __init__(self, loaded: LoadedModel, inputs: StepInputs, backend: AttentionBackend) -> None:
        """Takes over `loaded.model`: its attention layers use this backend from now."""
        self._model = loaded.model
        self._inputs, self._backend = inputs, backend
        attach(loaded.attention_modules, backend)

    def bind(self, pool: KVPool) -> None:
        self._backend.bind(pool)

    def logits(self, num_tokens: int, rows: torch.Tensor | None) -> torch.Tensor:
        output = self._model(
            input_ids=self._inputs["token_ids"][:num_tokens].long()[None],
            position_ids=self._inputs["positions"][:num_tokens].long()[None],
            use_cache=False,
            logits_to_keep=0 if rows is None else rows,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def device_forward(
    loaded: LoadedModel, inputs: StepInputs, tuning: Tuning | None = None, *, is_fused: bool = True
) -> DeviceForward:
    """The fastest one that computes what the model does, or its modules when not `is_fused`."""
    backend = TritonAttention(inputs, tuning)
    if is_fused and TritonDense.is_dense(loaded):
        return TritonDense(loaded, inputs, backend)
    return DeviceModules(loaded, inputs, backend)
