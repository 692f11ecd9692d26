"""The kernels between matrix products against torch, in Triton's interpreter where no GPU is."""

import pytest
import torch
import torch.nn.functional as F

from tests import needs

pytest.importorskip("triton", reason=needs.TRITON)

from baton.model.gpu.triton.layers import add_rms_norm, rotate_and_store, silu_mul

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, NUM_BLOCKS, NUM_HEADS, NUM_KV_HEADS, DIM = 16, 3, 6, 2, 24


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(9)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def test_norm_of_rows_and_of_their_sum_with_a_residual():
    values, residual, weight = rows(5, 96), rows(5, 96), rows(96)
    total = values + residual
    torch.testing.assert_close(
        add_rms_norm(values, None, weight, 1e-5), F.rms_norm(values, (96,), weight, 1e-5)
    )
    normed = add_rms_norm(values, residual, weight, 1e-5)
    torch.testing.assert_close(normed, F.rms_norm(total, (96,), weight, 1e-5))
    assert torch.equal(residual, total)


def test_gate_and_up_become_one():
    gate_up = rows(3, 2 * 100)
    torch.testing.assert_close(silu_mul(gate_up), F.silu(gate_up[:, :100]) * gate_up[:, 100:])


@pytest.mark.parametrize("has_norms", [False, True])
def test_queries_are_rotated_and_keys_and_values_stored(has_norms):
    num_tokens = 4
    qkv = rows(num_tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * DIM)
    angles = rows(num_tokens, DIM // 2).repeat(1, 2)
    norms = rows(2, DIM) if has_norms else None
    pages = rows(2, NUM_BLOCKS, NUM_KV_HEADS, BLOCK, DIM)
    before = pages.clone()
    slots = torch.tensor([17, 40, -1, 0], dtype=torch.int32, device=DEVICE)
    rotation = angles.cos(), angles.sin()
    query = rotate_and_store(qkv, rotation, (pages[0], pages[1]), slots, norms, 1e-6)

    heads = qkv.view(num_tokens, -1, DIM)
    queries, keys, values = heads.split([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], 1)
    if norms is not None:
        queries = F.rms_norm(queries, (DIM,), norms[0], 1e-6)
        keys = F.rms_norm(keys, (DIM,), norms[1], 1e-6)
    torch.testing.assert_close(query, rotated(queries, rotation))
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            place = slot // BLOCK, slice(None), slot % BLOCK
            before[0][place] = rotated(keys, rotation)[token]
            before[1][place] = values[token]
    torch.testing.assert_close(pages, before)


def rotated(heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = (part[:, None] for part in rotation)
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin
