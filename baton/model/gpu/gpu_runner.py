"""Runs one batch on a GPU: the `engine.Runner` of a model whose weights and cache lie there.

A step is one copy of its inputs, one forward pass, one small copy of the tokens back. A step of
plain decodes can be launched before those of the step before are back: it takes them from the
device, and all that touches the device is launched in the order of the steps. Steps that
are not large are padded to a fixed size and replayed as a CUDA graph, from embedding to greedy
tokens (`device_steps.py`). Tokens are chosen on the device: logits never leave it. With a CPU as
its device it is the same program without graphs, which is how it is tested.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from baton.engine.protocol.batch import SampleRow, StepBatch, StepResult
from baton.engine.protocol.messages import SamplingParams
from baton.model.gpu.block_staging import BlockStaging
from baton.model.gpu.device_pages import DevicePages
from baton.model.gpu.device_steps import DeviceSteps
from baton.model.gpu.gpu_forward import device_forward
from baton.model.gpu.step_inputs import StepInputs, StepLimits
from baton.model.gpu.triton.attention_backend import Tuning
from baton.model.gpu.triton.sampling import DEVICE_OPS, choose_tokens
from baton.model.load.load import LoadedModel
from baton.model.sampling.logit_edits import is_edited
from baton.model.sampling.row_sampler import RowSampler
from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.side_stream import side_stream
from baton.wire.kv_spec import KVSpec


class GpuRunner:
    """A loaded model on a device; `bind_ring` comes before the first `run`.

    Four of its attributes are the sizes that every Runner has; the others are its parts, which the
    graphs tie together: a captured step reads the inputs and the pool and writes the outputs.
    """

    kv_spec: KVSpec
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    def __init__(
        self,
        loaded: LoadedModel,
        limits: StepLimits,
        device: torch.device,
        tuning: Tuning | None = None,
        *,
        is_fused: bool = True,
    ) -> None:
        """Takes over `loaded.model`, which is on the device; not `is_fused`: as it is."""
        self.kv_spec = loaded.kv_spec
        self.vocab_size = loaded.vocab_size
        self.max_model_len = loaded.max_model_len
        self.eos_token_ids = loaded.eos_token_ids
        self._sampler = RowSampler(loaded.eos_token_ids, DEVICE_OPS)
        self._limits, self._device = limits, device
        inputs = StepInputs(limits, loaded.kv_spec.block_size, device)
        forward = device_forward(loaded, inputs, tuning, is_fused=is_fused)
        self._steps = DeviceSteps(forward, inputs, _num_logits(loaded), device)
        self._staging: BlockStaging | None = None
        # Of the batch that was launched last, while the next one may want them.
        self._tokens: torch.Tensor | None = None
        # Whether steps are captured for each pool that is bound.
        self.captures_graphs = False

    def bind_ring(self, ring: memoryview, num_blocks: int) -> None:
        """As `runner.StagingRunner.bind_ring`; captures graphs if enabled."""
        self.make_pool(num_blocks)
        self._staging = BlockStaging.of_pool(self.pool, ring, side_stream(self.pool.rows.device))

    def bind_pool(self, pool: memoryview) -> None:
        """Make a cache as large as this pool, for checks: nothing is handed over."""
        self.make_pool(len(pool) // self.kv_spec.row_bytes)

    @torch.inference_mode()
    def make_pool(self, num_blocks: int) -> None:
        """Make a cache that nothing is handed over from or to, and capture graphs if enabled."""
        num_bytes = num_blocks * self.kv_spec.row_bytes
        self._staging = None
        self.pool = KVPool(
            self.kv_spec, torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        )
        self._steps.forward.bind(self.pool)
        self._steps.clear()
        if self.captures_graphs:
            self.capture_graphs()

    def device_pages(self, ring_bytes: int) -> DevicePages:
        """The pool that is bound now, for reads from other devices; takes `ring_bytes` more."""
        return DevicePages(self.pool, ring_bytes)

    @property
    def num_copies_begun(self) -> int:
        """As `runner.StagingRunner.num_copies_begun`."""
        return 0 if self._staging is None else self._staging.num_begun

    @torch.inference_mode()
    def upload(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """As `runner.StagingRunner.upload`."""
        assert self._staging is not None, "a ring is bound"
        self._staging.upload(rows, block_ids)

    @torch.inference_mode()
    def download(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        """As `runner.StagingRunner.download`."""
        assert self._staging is not None, "a ring is bound"
        self._staging.download(block_ids, rows)

    def poll_copies(self) -> int:
        """The number of those copies that have ended."""
        return 0 if self._staging is None else self._staging.poll()

    @property
    def num_graphs(self) -> int:
        """The number of sizes of steps that are captured."""
        return self._steps.num_captured

    def decode_size(self, num_seqs: int) -> int | None:
        """The size to which a decode step of so many sequences is padded; None = not at all."""
        return self._steps.decode_size(num_seqs)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture steps over the pool that is bound now.

        Raises RuntimeError when the model does something that cannot be captured.
        """
        self._steps.capture()

    @torch.inference_mode()
    def try_graph(self) -> None:
        """Capture a step of each kind. Raises RuntimeError when one cannot be captured."""
        self._steps.try_capture()

    def run_largest_step(self) -> None:
        """Run what takes most memory, over whatever pool is bound; its first block is ruined."""
        self.run(_largest_batch(self._limits, self.max_model_len))

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> StepResult:
        logits, greedy = self._compute(batch)
        rows = batch.sample_rows
        if all(map(_is_plain_greedy, rows)):
            return StepResult(greedy.cpu().numpy())
        masks = None if batch.masks is None else batch.masks.result()
        return self._sampler.result(logits, rows, masks)

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepResult]:
        """As `runner.AheadRunner.launch`."""
        logits, greedy = self._compute(batch)
        rows = batch.sample_rows
        is_greedy = all(map(_is_plain_greedy, rows))
        tokens = greedy if is_greedy else choose_tokens(logits, rows, list(range(len(rows))))
        self._tokens = tokens
        return _copy_to_host(tokens)

    def _compute(self, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Launch the step with its copies; returns logits and likeliest tokens, used up soon."""
        for source, target in batch.block_copies:
            self.pool.copy_block(source, target)
        if batch.masks is not None:
            batch.masks.start()
        found = self._steps.compute(batch, self._tokens)
        self.poll_copies()  # while the device computes
        return found

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Compute the batch; float32 logits of its `sample_rows`, on the device, used up soon."""
        return self._steps.compute(batch)[0]


def _copy_to_host(tokens: torch.Tensor) -> Callable[[], StepResult]:
    """Begin to copy a step's tokens; the call that is returned waits for them."""
    is_gpu = tokens.device.type == "cuda"
    here = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=is_gpu)
    here.copy_(tokens, non_blocking=True)
    copied = torch.cuda.Event() if is_gpu else None  # type: ignore[no-untyped-call]
    if copied is not None:
        copied.record()

    def result() -> StepResult:
        if copied is not None:
            copied.synchronize()
        return StepResult(here.numpy())

    return result


def _num_logits(loaded: LoadedModel) -> int:
    """The width of the model's output, which may be wider than its vocabulary."""
    layer: Any = loaded.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return loaded.vocab_size if layer is None else int(layer.weight.shape[0])


def _largest_batch(limits: StepLimits, max_model_len: int) -> StepBatch:
    """As many tokens as fit, in prompts as long as they can be; each row is to be sampled from."""
    num_tokens = min(limits.max_tokens, limits.max_seqs * max_model_len)
    starts = [*range(0, num_tokens, max_model_len), num_tokens]
    lengths = np.diff(starts)
    params = SamplingParams(max_tokens=1, temperature=1.0)
    return StepBatch(
        step=0,
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        query_starts=np.array(starts, np.int32),
        context_lens=lengths.astype(np.int32),
        block_tables=np.zeros((len(lengths), limits.max_blocks_per_seq), np.int32),
        seq_ids=[],
        sample_rows=[SampleRow(num_tokens - 1, params, 0, 0) for _ in range(limits.max_seqs)],
    )


def _is_plain_greedy(row: SampleRow) -> bool:
    """The row wants the likeliest token and nothing else."""
    is_greedy = row.params.temperature <= 0.0 and row.forced_token is None
    return is_greedy and not is_edited(row) and row.num_logprobs is None
