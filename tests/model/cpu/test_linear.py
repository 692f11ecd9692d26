"""Packed linear layers against float64 products, on each instruction set here."""

import pytest
import torch
import torch.nn.functional as F

from baton.model.cpu import fused_modules, linear, native
from baton.model.cpu.fused_modules import GatedMlp, PackedNorm
from baton.model.cpu.linear import OnednnLinear, PackedLinear, has_onednn, make_linear
from baton.model.cpu.packed_matrix import PackedMatrix, WeightMemory

pytestmark = pytest.mark.usefixtures("compiled_kernels")
# Of the largest output.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
# Columns and size, whole panels and chunks of them or not.
SHAPES = ((96, 64), (100, 40), (33, 8), (160, 256))
# Around the rows of a tile, of a block, and of what stays in a cache.
NUM_ROWS = (1, 2, 15, 16, 17, 33, 65, 300)


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture
def on_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the layers use one instruction set."""
    for module in (linear, fused_modules):
        monkeypatch.setattr(module, "best_isa", lambda: native.ISAS.index(isa))
    return isa


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (actual.double() - expected).abs().max()
    assert difference <= TOLERANCE[actual.dtype] * expected.abs().max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_equals_float64_and_no_row_depends_on_the_others(on_isa, dtype, shape):
    weight, bias = random(*shape, dtype=dtype), random(shape[0], dtype=dtype)
    layer = PackedLinear(PackedMatrix([weight], [bias], WeightMemory()))
    rows = random(NUM_ROWS[-1], shape[1], dtype=dtype)
    whole = layer(rows)
    assert_same(whole, F.linear(rows.double(), weight.double(), bias.double()))
    for num_rows in NUM_ROWS:
        assert torch.equal(layer(rows[:num_rows]), whole[:num_rows]), num_rows
        assert torch.equal(layer(rows[-num_rows:]), whole[-num_rows:]), num_rows


def test_values_side_by_side_are_multiplied_as_they_are(on_isa, dtype):
    """Two in bfloat16 are one float to a vector register: here one that arithmetic would change."""
    layer = PackedLinear(PackedMatrix([torch.ones(32, 64, dtype=dtype)], [None], WeightMemory()))
    rows = torch.zeros(20, 64, dtype=dtype)
    rows[:, 0], rows[:, 1] = 1.0, float("inf")
    assert torch.equal(layer(rows), torch.full((20, 32), float("inf"), dtype=dtype))


def test_two_threads_give_the_bits_of_one(dtype):
    layer = PackedLinear(PackedMatrix([random(160, 96, dtype=dtype)], [None], WeightMemory()))
    rows = random(300, 96, dtype=dtype)
    alone = layer(rows)
    torch.set_num_threads(2)
    try:
        assert torch.equal(layer(rows), alone)
    finally:
        torch.set_num_threads(1)


def test_there_may_be_many_threads():
    layer = PackedLinear(PackedMatrix([random(160, 96)], [None], WeightMemory()))
    rows = random(40, 96)
    alone = layer(rows)
    torch.set_num_threads(150)
    try:
        assert torch.equal(layer(rows), alone)
    finally:
        torch.set_num_threads(1)


def test_several_weights_are_one_product_with_their_biases(dtype):
    weights = [random(rows, 64, dtype=dtype) for rows in (48, 16, 33)]
    weights[2] = weights[2][:32]
    biases = [random(48, dtype=dtype), None, random(32, dtype=dtype)]
    layer = make_linear(weights, biases, WeightMemory())
    rows = random(1, 5, 64, dtype=dtype)
    expected = [
        F.linear(rows.double(), w.double(), None if b is None else b.double())
        for w, b in zip(weights, biases, strict=True)
    ]
    assert_same(layer(rows), torch.cat(expected, -1))


@pytest.mark.parametrize("num_rows", [1, 20, 300])
def test_gated_mlp_is_one_call(on_isa, dtype, num_rows):
    gate, up = random(96, 64, dtype=dtype), random(96, 64, dtype=dtype) + 0.5
    down, bias = random(64, 96, dtype=dtype), random(96, dtype=dtype)
    memory = WeightMemory()
    gate_up = PackedMatrix([gate, up], [bias, None], memory, is_interleaved=True)
    mlp = GatedMlp(gate_up, PackedMatrix([down], [None], memory))
    rows = random(num_rows, 64, dtype=dtype)
    wide = rows.double()
    inner = F.silu(F.linear(wide, gate.double(), bias.double())) * F.linear(wide, up.double())
    assert_same(mlp(rows), F.linear(inner.to(dtype).double(), down.double()))


@pytest.mark.parametrize("size", [64, 40, 8])
def test_rms_norm_equals_torchs(on_isa, dtype, size):
    weight, rows = random(size, dtype=dtype), random(3, 7, size, dtype=dtype)
    expected = F.rms_norm(rows.double(), (size,), eps=1e-6) * weight.double()
    error = (PackedNorm(weight, 1e-6)(rows).double() - expected).abs().max()
    # bfloat16 is rounded twice, as by transformers' modules.
    assert error <= 2 * TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.skipif(not has_onednn(), reason="needs a torch with oneDNN: tools/setup.sh")
def test_onednn_layer_equals_torchs(dtype):
    weight, bias, rows = (random(*s, dtype=dtype) for s in ((96, 64), (96,), (2, 9, 64)))
    assert_same(OnednnLinear(weight, bias)(rows), F.linear(rows, weight, bias).double())


def test_a_layer_that_differs_is_not_used(monkeypatch):
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: rows.new_ones(len(rows), 32))
    assert make_linear([random(32, 64)], [None], WeightMemory()) is None


def test_weights_of_different_inputs_cannot_be_packed_together():
    assert not PackedMatrix.can_pack([random(32, 64), random(32, 96)])
    assert not PackedMatrix.can_pack([random(32, 64), random(32, 64).bfloat16()])
    assert not PackedMatrix.can_pack([random(40, 64), random(32, 64)])
    assert not PackedMatrix.can_pack([random(32, 64).double()])


def test_rows_of_another_type_are_refused():
    layer = PackedLinear(PackedMatrix([random(32, 64)], [None], WeightMemory()))
    with pytest.raises(TypeError, match="bfloat16"):
        layer(random(2, 64).bfloat16())


def test_large_matrices_lie_in_memory_of_their_own():
    memory = WeightMemory()
    first, second = memory.allocate(5000), memory.allocate(100)
    large = memory.allocate(65 * 1024 * 1024)
    assert second.data_ptr() - first.data_ptr() == 8192
    assert large.data_ptr() % (2 * 1024 * 1024) == 0
    assert int(first.sum()) == int(large[-1]) == 0
