"""Tokens of a step on a device: the same as `baton/model/sampling` has, in one launch each."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow
from baton.model.gpu.triton.sampling_kernels import forbid_tokens_kernel, sample_rows_kernel
from baton.model.sampling.noise import keys_of
from baton.model.sampling.row_sampler import SamplingOps

_MAX_TILE = 4096
_NUM_WARPS = 16
_MAX_REGISTERS = 128  # of a thread: all that so many warps can have, or some would be spilled
_TILE_WORDS = 128
_SETTINGS = np.dtype(
    [
        ("row", "<i4"),
        ("key", "<u8"),
        ("top_k", "<i4"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("floor", "<f4"),
        ("unused", "<i4"),
    ]
)


def sample_on_device(logits: torch.Tensor, rows: Sequence[SampleRow]) -> NDArray[np.int64]:
    """As `sampler.sample`."""
    forced = [0 if row.forced_token is None else row.forced_token for row in rows]
    tokens = np.array(forced, dtype=np.int64)
    indexes = [index for index, row in enumerate(rows) if row.forced_token is None]
    if indexes:
        tokens[indexes] = choose_tokens(logits, rows, indexes).cpu().numpy()
    return tokens


def choose_tokens(
    logits: torch.Tensor, rows: Sequence[SampleRow], indexes: list[int]
) -> torch.Tensor:
    """Launch the choice of the tokens of those rows, int64 `[num_indexes]`; waits for nothing."""
    size = logits.shape[1]
    settings, has_limits = _settings(indexes, [rows[index] for index in indexes], size)
    chosen = torch.empty(len(indexes), dtype=torch.int64, device=logits.device)
    sample_rows_kernel[(len(indexes),)](
        logits,
        _to_device(settings.view(np.int32), logits.device),
        chosen,
        logits.stride(0),
        size,
        HAS_LIMITS=has_limits,
        TILE=min(_MAX_TILE, 1 << (size - 1).bit_length()),
        num_warps=_NUM_WARPS,
        maxnreg=_MAX_REGISTERS,
    )
    return chosen


def _to_device(values: NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """A copy that nobody waits for: work that was launched before may still run."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _settings(
    indexes: list[int], rows: list[SampleRow], size: int
) -> tuple[NDArray[np.void], bool]:
    """An entry for each row, as the kernel reads it, and True when some row has a limit."""
    settings = np.zeros(len(rows), _SETTINGS)
    params = [row.params for row in rows]
    settings["row"] = indexes
    settings["key"] = keys_of(rows)
    top_k = np.array([each.top_k for each in params], np.int64)
    top_p = np.array([each.top_p for each in params], np.float32)
    min_p = np.array([each.min_p for each in params], np.float32)
    settings["top_k"] = np.where(top_k > 0, np.minimum(top_k, size), size)
    is_greedy = top_k == 1
    settings["temperature"] = np.where(is_greedy, 0.0, [each.temperature for each in params])
    # Off = infinite: rounded sums of weights may reach 1 before the last token.
    settings["top_p"] = np.where(top_p < 1.0, top_p, np.inf)
    with np.errstate(divide="ignore"):
        settings["floor"] = np.log(min_p)
    has_limits = (settings["top_k"] < size) | (top_p < 1.0) | (min_p > 0.0)
    return settings, bool((has_limits & ~is_greedy).any())


def forbid_on_device(
    logits: torch.Tensor, indexes: Sequence[int], words: NDArray[np.int32]
) -> None:
    """As `logit_edits.forbid_tokens`."""
    num_words = words.shape[1]
    on_device = torch.from_numpy(np.ascontiguousarray(words)).to(logits.device)
    needed = -(-logits.shape[1] // 32)
    forbid_tokens_kernel[(len(indexes), -(-needed // _TILE_WORDS))](
        logits,
        torch.tensor(indexes, dtype=torch.int32, device=logits.device),
        on_device,
        logits.stride(0),
        logits.shape[1],
        num_words,
        TILE_WORDS=_TILE_WORDS,
    )


DEVICE_OPS = SamplingOps(sample_on_device, forbid_on_device)
