"""A step's logits on a device: replayed from a CUDA graph if it is small, else run as it is.

Pure decode steps are padded to a number of sequences. Steps with drafts or prefill chunks are
padded to a number of tokens, and all of them have the largest number of sequences, since a graph
launches a fixed number of programs; above a few hundred tokens they compute for longer than they
take to launch.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import StepBatch
from baton.model.gpu.gpu_forward import DeviceForward
from baton.model.gpu.step_graphs import StepGraphs, decode_sizes, token_sizes
from baton.model.gpu.step_inputs import Padding, StepInputs


class _Outputs(NamedTuple):
    """The results of padded steps; graphs of all sizes write there."""

    logits: torch.Tensor  # float32 [max_seqs, num_logits]
    greedy: torch.Tensor  # int64 [max_seqs], the likeliest tokens


class DeviceSteps:
    """Runs `forward` over `inputs`, which it fills with each batch."""

    def __init__(
        self, forward: DeviceForward, inputs: StepInputs, num_logits: int, device: torch.device
    ) -> None:
        self.forward = forward
        self._inputs = inputs
        limits = inputs.limits
        self._outputs = _Outputs(
            torch.empty(limits.max_seqs, num_logits, device=device),
            torch.empty(limits.max_seqs, dtype=torch.int64, device=device),
        )
        sizes = decode_sizes(limits.max_seqs)
        self._decodes = StepGraphs(sizes, device, self._decode, self._prepare_decode)
        sizes = token_sizes(limits.max_tokens)
        self._others = StepGraphs(sizes, device, self._mixed, self._prepare_mixed)
        # Whether steps with drafts or prefill chunks are padded; decode steps always are.
        self.pads_all = False

    @property
    def num_captured(self) -> int:
        return self._decodes.num_captured + self._others.num_captured

    def decode_size(self, num_seqs: int) -> int | None:
        """The size to which a decode step of so many sequences is padded; None = not at all."""
        return self._decodes.size_for(num_seqs)

    def clear(self) -> None:
        """Forget what was captured: memory that the forward pass uses has moved."""
        self._decodes.clear()
        self._others.clear()
        self.pads_all = False

    def capture(self) -> None:
        """Capture all sizes. Raises RuntimeError when the model does what cannot be captured."""
        self._others.capture()
        self._decodes.capture()
        self.pads_all = True

    def try_capture(self) -> None:
        """Capture the smallest step of each kind, and forget both. Raises as `capture`."""
        self._others.capture(self._others.sizes[:1])
        self._decodes.capture(self._decodes.sizes[:1])
        self.clear()

    def compute(
        self, batch: StepBatch, earlier: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (float32) and likeliest token of each of `sample_rows`; used up soon.

        `earlier`: the tokens of the step before, on the device, for a batch of decodes that were
        launched without them.
        """
        rows = np.array([row.token_row for row in batch.sample_rows], dtype=np.int64)
        num_seqs, num_tokens = len(batch.context_lens), len(batch.token_ids)
        if num_seqs == num_tokens and (size := self._decodes.size_for(num_seqs)) is not None:
            return self._run_decode(batch, rows, size, earlier)
        size = self._others.size_for(num_tokens) if self.pads_all else None
        if size is not None and len(rows) <= self._num_rows(size):
            padding = Padding(size - num_tokens, self._inputs.limits.max_seqs - num_seqs)
            self._inputs.fill(batch, rows, padding)
            self._others.run(size)
            logits, greedy = self._outputs
            return logits[: len(rows)], greedy[: len(rows)]
        self._inputs.fill(batch, rows)
        wanted = self._inputs["logit_rows"][: len(rows)].long()
        logits = self.forward.logits(num_tokens, wanted)
        return logits.float(), logits.argmax(-1)

    def _run_decode(
        self,
        batch: StepBatch,
        rows: NDArray[np.int64],
        size: int,
        earlier: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_padded = size - len(batch.context_lens)
        self._inputs.fill(batch, rows, Padding(num_padded, num_padded))
        if batch.tokens_from is not None and earlier is not None:
            self._inputs.put_tokens(earlier, len(batch.tokens_from))
        self._decodes.run(size)
        logits, greedy = self._outputs
        if np.array_equal(rows, np.arange(len(rows))):
            return logits[: len(rows)], greedy[: len(rows)]
        wanted = self._inputs["logit_rows"][: len(rows)].long()
        return logits[wanted], greedy[wanted]

    def _num_rows(self, num_tokens: int) -> int:
        """The logits that a padded step of so many tokens has room for."""
        return min(num_tokens, self._inputs.limits.max_seqs)

    def _prepare_decode(self, size: int) -> None:
        self._inputs.fill_padding(Padding(size, size))

    def _prepare_mixed(self, num_tokens: int) -> None:
        """A padded step whose launches hold those of every step of so many tokens."""
        self._inputs.fill_padding(Padding(num_tokens, self._inputs.limits.max_seqs))
        self._inputs.max_queries = num_tokens

    def _decode(self, size: int) -> None:
        """One token of `size` sequences, into the outputs."""
        self._put(self.forward.logits(size, None))

    def _mixed(self, num_tokens: int) -> None:
        """So many tokens of any sequences, the logits of the wanted rows into the outputs."""
        wanted = self._inputs["logit_rows"][: self._num_rows(num_tokens)].long()
        self._put(self.forward.logits(num_tokens, wanted))

    def _put(self, found: torch.Tensor) -> None:
        logits, greedy = (output[: len(found)] for output in self._outputs)
        logits.copy_(found)
        torch.argmax(logits, -1, out=greedy)
