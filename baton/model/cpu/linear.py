"""Linear layers over weights that are packed once: compiled products, else oneDNN, else torch.

Every layer is proven on random rows against `F.linear` before it replaces anything. oneDNN's
packing is behind private names of torch (`torch.ops.mkldnn`): they are used here only, and not
used where they are missing or differ. Rows are `[..., size]`, of the weight's dtype; a compiled
product's rows do not depend on how many there are.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from baton.model.cpu import native
from baton.model.cpu.packed_matrix import DTYPES, PackedMatrix, WeightMemory

# Of the largest output; rounding alone gives 4e-3 in bfloat16 and 1e-6 in float32.
_MAX_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
# More rows than a tile of the products, and not a whole number of tiles.
_NUM_PROOF_ROWS = 19


class PackedLinear(nn.Module):
    """Rows times a packed matrix, by the compiled products."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.in_features, self.out_features = matrix.size, matrix.num_columns
        self._code = DTYPES[matrix.dtype]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        check_rows(rows, self.matrix.dtype)
        rows = rows.contiguous()
        out = rows.new_empty(*rows.shape[:-1], self.out_features)
        native_call("baton_linear")(
            best_isa(),
            self._code,
            self.matrix.address,
            rows.data_ptr(),
            rows.numel() // self.in_features,
            self.in_features,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class OnednnLinear(nn.Module):
    """Rows times a weight in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._bias = None if bias is None else bias.detach().clone()
        # Packed for one row, where the layout matters most.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self._bias, "none", [], ""
        )
        return result


def make_linear(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    memory: WeightMemory,
) -> nn.Module | None:
    """The fastest layer of these weights, one after the other; None when torch's is all there is.

    Nothing of the weights is kept.
    """
    if PackedMatrix.can_pack(weights):
        made = PackedLinear(PackedMatrix(weights, biases, memory))
        return made if is_same_linear(made, weights, biases) else None
    if not has_onednn() or not weights[0].dtype.is_floating_point:
        return None
    joined = torch.cat(list(weights)) if len(weights) > 1 else weights[0]
    if joined.dtype not in _MAX_ERROR:
        return None
    layer = OnednnLinear(joined, _joined(weights, biases))
    return layer if is_same_linear(layer, weights, biases) else None


@torch.inference_mode()
def is_same_linear(
    layer: nn.Module, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> bool:
    """The layer gives what `F.linear` gives, on random rows."""
    generator = torch.Generator().manual_seed(weights[0].shape[1])
    rows = torch.randn(_NUM_PROOF_ROWS, weights[0].shape[1], generator=generator)
    rows = rows.to(weights[0].dtype)
    parts = [F.linear(rows, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    expected = torch.cat(parts, -1).float()
    difference = (layer(rows).float() - expected).abs().max()
    return bool(difference <= _MAX_ERROR[weights[0].dtype] * expected.abs().max())


@cache
def has_onednn() -> bool:
    """This torch has oneDNN's packed layers under the names that we know."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    is_there = all(hasattr(torch.ops.mkldnn, name) for name in names)
    return is_there and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


@cache
def best_isa() -> int:
    """The best instruction set of the compiled kernels here, as they count them."""
    return len(native.usable_isas()) - 1


@cache
def native_call(name: str) -> Callable[..., Any]:
    """A function of the library, which must be there; addresses and counts are plain integers."""
    library = native.library()
    assert library is not None, "the kernels are not built"
    function: Any = getattr(library, name)
    function.argtypes = SIGNATURES[name]
    function.restype = None
    return function  # type: ignore[no-any-return]


_INT, _ADDRESS, _FLOAT = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
SIGNATURES: dict[str, list[Any]] = {
    "baton_linear": [_INT, _INT, _ADDRESS, _ADDRESS, _INT, _INT, _ADDRESS, _INT],
    "baton_gated_mlp": [_INT, _INT, *[_ADDRESS] * 3, _INT, _INT, _ADDRESS, _INT],
    "baton_rms_norm": [_INT, _INT, _ADDRESS, _ADDRESS, _INT, _INT, _FLOAT, _ADDRESS, _INT],
    "baton_dense_step": [_ADDRESS, _ADDRESS, _ADDRESS],
}


def check_rows(rows: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises TypeError when a compiled kernel would misread these rows."""
    if rows.dtype != dtype or rows.device.type != "cpu":
        raise TypeError(f"rows of {rows.dtype} on {rows.device} for a layer of {dtype} on cpu")


def _joined(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = zip(weights, biases, strict=True)
    return torch.cat([w.new_zeros(w.shape[0]) if b is None else b.detach() for w, b in parts])
