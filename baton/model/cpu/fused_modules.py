"""The modules by which `surgery.py` replaces transformers': fewer and faster calls.

Each takes and gives the tensors of the module that it replaces. Nothing here looks for modules or
decides whether to replace one.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from baton.model.cpu.linear import best_isa, check_rows, native_call
from baton.model.cpu.packed_matrix import DTYPES, PackedMatrix, WeightMemory

_NUM_PROOF_ROWS = 19
# Relative to the largest value that the replaced module gives. In bfloat16 the norm rounds where
# transformers' does, so that few values differ, by one unit in the last place.
_MAX_ERROR = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
_MAX_MLP_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class SharedProduct:
    """One linear layer whose columns belong to several modules that get the same input.

    The first of them to be called computes for all; the others take their columns. Nothing is kept
    once all have been served.
    """

    def __init__(self, linear: nn.Module, sizes: tuple[int, ...]) -> None:
        self.linear = linear
        self.sizes = sizes
        self._rows: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    def part(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        """The columns `index` of the product, `[..., sizes[index]]`, strided."""
        if rows is not self._rows or self._parts[index] is None:
            self._rows, self._parts = rows, list(self.linear(rows).split(self.sizes, -1))
        result = self._parts[index]
        assert result is not None
        self._parts[index] = None
        if all(part is None for part in self._parts):
            self._rows = None
        return result


class FusedPart(nn.Module):
    """A linear layer that is some columns of a larger one."""

    def __init__(self, shared: SharedProduct, index: int) -> None:
        super().__init__()
        self.shared, self.index = shared, index

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.shared.part(rows, self.index)


class GatedMlp(nn.Module):
    """down(silu(gate(rows)) * up(rows)) in one call of the compiled kernels."""

    PARTS = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, gate_up: PackedMatrix, down: PackedMatrix) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self._code = DTYPES[down.dtype]

    @classmethod
    def of(
        cls, mlp: nn.Module, layers: tuple[nn.Linear, nn.Linear, nn.Linear], memory: WeightMemory
    ) -> "GatedMlp | None":
        """Pack the layers of `mlp`; None when it is not such an MLP or the kernels cannot do it."""
        gate, up, down = layers
        fits = PackedMatrix.can_pack([gate.weight, up.weight], is_interleaved=True)
        if not fits or not PackedMatrix.can_pack([down.weight]):
            return None
        size = gate.in_features
        if down.in_features != gate.out_features or down.out_features != size:
            return None
        if not is_same_module(lambda rows: down(F.silu(gate(rows)) * up(rows)), mlp, gate.weight):
            return None
        gate_up = PackedMatrix(
            [gate.weight, up.weight], [gate.bias, up.bias], memory, is_interleaved=True
        )
        made = cls(gate_up, PackedMatrix([down.weight], [down.bias], memory))
        return made if is_same_module(made, mlp, gate.weight, _MAX_MLP_ERROR) else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        check_rows(rows, self.down.dtype)
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        native_call("baton_gated_mlp")(
            best_isa(),
            self._code,
            self.gate_up.address,
            self.down.address,
            rows.data_ptr(),
            rows.numel() // self.gate_up.size,
            self.gate_up.size,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class PackedNorm(nn.Module):
    """RMSNorm in one call: rows divided by the root of their mean square, times a weight."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        # No parameter (not of the model's dtype), and no view of the mapped file.
        self.scale = weight.detach().to(torch.float32, copy=True)
        self.dtype, self.eps, self.size = weight.dtype, eps, weight.shape[0]
        self._code = DTYPES[weight.dtype]

    @classmethod
    def of(cls, norm: nn.Module) -> "PackedNorm | None":
        """The same as a module that looks like an RMSNorm; None when it is not one."""
        weight = getattr(norm, "weight", None)
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        if not isinstance(weight, torch.Tensor) or weight.ndim != 1:
            return None
        if not isinstance(eps, float) or weight.dtype not in DTYPES:
            return None
        if getattr(norm, "bias", None) is not None or best_isa() < 0:
            return None
        made = cls(weight, eps)
        return made if is_same_module(made, norm, weight[None]) else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        check_rows(rows, self.dtype)
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        native_call("baton_rms_norm")(
            best_isa(),
            self._code,
            rows.data_ptr(),
            self.scale.data_ptr(),
            rows.numel() // self.size,
            self.size,
            self.eps,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


@torch.inference_mode()
def is_same_module(
    made: Callable[[torch.Tensor], torch.Tensor],
    replaced: nn.Module,
    like: torch.Tensor,
    max_error: dict[torch.dtype, float] = _MAX_ERROR,
) -> bool:
    """Both give the same for random rows, as wide as the rows of `like`.

    A module that does not take a tensor alone is another kind of module.
    """
    generator = torch.Generator().manual_seed(like.shape[-1])
    rows = torch.randn(1, _NUM_PROOF_ROWS, like.shape[-1], generator=generator).to(like.dtype)
    try:
        expected = replaced(rows)
    except TypeError:
        return False
    if not isinstance(expected, torch.Tensor) or expected.dtype != like.dtype:
        return False
    result = made(rows)
    if result.shape != expected.shape:
        return False
    difference = (result.float() - expected.float()).abs().max()
    return bool(difference <= max_error[like.dtype] * expected.float().abs().max())
