"""Weights in the layout of the compiled products (`csrc/panels.h`), in memory of huge pages.

A matrix is packed once, when a model is loaded; its original can be dropped then. Several weights
of the same input become one matrix, one after the other or, for gated MLPs, interleaved. Huge
pages matter: out of 4 KiB pages weights stream at about two thirds of the speed.
"""

import ctypes
import mmap
from collections.abc import Sequence

import torch

from baton.model.cpu import native
from baton.model.cpu.native_structs import Matrix
from baton.system.memory_file import HUGE_PAGE_BYTES

DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # `Dtype` in csrc/attention.h
PANEL_COLUMNS = 32
HALF_COLUMNS = 16
CHUNK_BYTES = 64
_REGION_BYTES = 64 * 1024 * 1024
_ALIGNMENT = 4096


class WeightMemory:
    """Hands out memory from large regions. It lives as long as any tensor that points into it."""

    def __init__(self) -> None:
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Zeroed bytes, aligned to a page. Raises OSError when there is no address space."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if start + num_bytes > len(self._region):
            self._region = _huge_pages(max(num_bytes, _REGION_BYTES))
            start = 0
        self._used = start + num_bytes
        return self._region[start : self._used]


def _huge_pages(num_bytes: int) -> torch.Tensor:
    """Fresh private memory that begins with a huge page; untouched parts cost nothing."""
    if not hasattr(mmap, "MAP_PRIVATE") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=flags)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel without huge pages: only slower
    region = torch.frombuffer(memory, dtype=torch.uint8)
    start = -region.data_ptr() % HUGE_PAGE_BYTES
    return region[start : start + num_bytes]


class PackedMatrix:
    """One or several weights `[rows, size]` of one dtype and their biases, ready for products."""

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        memory: WeightMemory,
        *,
        is_interleaved: bool = False,
    ) -> None:
        """Copies the weights; see `can_pack`. Interleaved ones are two of equal size."""
        library = native.library()
        assert library is not None, "the kernels are not built"
        self.dtype = weights[0].dtype
        self.size = weights[0].shape[1]
        self.part_sizes = tuple(weight.shape[0] for weight in weights)
        self.num_columns = sum(self.part_sizes)
        code = DTYPES[self.dtype]
        library.baton_packed_bytes.restype = ctypes.c_int64
        num_bytes = library.baton_packed_bytes(code, self.num_columns, self.size)
        self._panels = memory.allocate(num_bytes)
        for index, weight in enumerate(weights):
            first_half = index if is_interleaved else sum(self.part_sizes[:index]) // HALF_COLUMNS
            library.baton_pack(
                code,
                ctypes.c_void_p(weight.contiguous().data_ptr()),
                weight.shape[0],
                self.size,
                ctypes.c_void_p(self._panels.data_ptr()),
                first_half,
                2 if is_interleaved else 1,
                torch.get_num_threads(),
            )
        self._bias = _joined_bias(biases, self.part_sizes, is_interleaved)
        self.native = Matrix(
            self._panels.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.num_columns,
            -(-self.size * self.dtype.itemsize // CHUNK_BYTES),
        )
        self.address = ctypes.addressof(self.native)

    @staticmethod
    def can_pack(weights: Sequence[torch.Tensor], *, is_interleaved: bool = False) -> bool:
        """The kernels are built, and for these weights together."""
        first = weights[0]
        is_uniform = all(w.dtype == first.dtype and w.shape[1] == first.shape[1] for w in weights)
        unit = PANEL_COLUMNS if is_interleaved else HALF_COLUMNS
        fits = len(weights) == 1 or all(w.shape[0] % unit == 0 for w in weights)
        if is_interleaved:
            fits = fits and len(weights) == 2 and weights[0].shape == weights[1].shape
        return is_uniform and fits and first.dtype in DTYPES and native.library() is not None


def _joined_bias(
    biases: Sequence[torch.Tensor | None], sizes: Sequence[int], is_interleaved: bool
) -> torch.Tensor | None:
    """Biases in float32 in the order of the packed columns; None when there is none at all."""
    if all(bias is None for bias in biases):
        return None
    parts = [
        torch.zeros(size) if bias is None else bias.detach().float()
        for bias, size in zip(biases, sizes, strict=True)
    ]
    if not is_interleaved:
        return torch.cat(parts).contiguous()
    return torch.stack([part.view(-1, HALF_COLUMNS) for part in parts], 1).flatten().contiguous()
