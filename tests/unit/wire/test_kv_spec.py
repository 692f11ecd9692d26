from baton.wire import kv_spec
from baton.wire.kv_spec import KVSpec


def spec(block_size: int = 16, k_dim: int = 8) -> KVSpec:
    return KVSpec.of_layers(block_size, [(2, k_dim, 8, "float32"), (1, 4, 2, "bfloat16")])


def test_pages_lie_one_after_the_other_in_a_row() -> None:
    one = spec()
    assert one.layers[1].offset == 2 * 16 * 16 * 4
    assert one.row_bytes == one.layers[1].offset + 16 * 6 * 2
    assert one.page_range(3, 1) == (3 * one.row_bytes + one.layers[1].offset, 4 * one.row_bytes)


def test_equal_specs_have_no_difference_and_survive_the_wire() -> None:
    assert spec().difference(kv_spec.from_wire(kv_spec.to_wire(spec()))) is None
    assert spec().digest() == kv_spec.from_wire(kv_spec.to_wire(spec())).digest()


def test_difference_names_the_field() -> None:
    assert "block_size 16 != 32" in (spec().difference(spec(32)) or "")
    same_bytes = KVSpec.of_layers(16, [(1, 16, 16, "float32"), (1, 4, 2, "bfloat16")])
    assert "layer 0" in (spec().difference(same_bytes) or "")


def test_blocks_for_tokens_rounds_up() -> None:
    assert [spec().num_blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
