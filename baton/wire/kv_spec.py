"""The shape of a KV cache (decision 0030): bytes `[num_blocks, row_bytes]` with one page per layer.

A block is one contiguous row; a (block, layer) pair is one contiguous page `[K][V]` with K as
`[num_kv_heads, block_size, k_dim]` and V as `[num_kv_heads, block_size, v_dim]` (heads before
tokens). Two workers may hand blocks to each other only when their specs are equal.
"""

from dataclasses import dataclass
from hashlib import sha256

from baton.wire.v1 import handoff_pb2

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer's page inside a block's row."""

    offset: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    dtype: str
    kind: str = "attention"

    def page_bytes(self, block_size: int) -> int:
        """Bytes of this layer's page in one block."""
        values = self.num_kv_heads * block_size * (self.k_dim + self.v_dim)
        return values * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """A block's whole row. `layers` are in model order with ascending offsets."""

    block_size: int
    row_bytes: int
    layers: tuple[LayerSpec, ...]

    @classmethod
    def of_layers(
        cls, block_size: int, shapes: list[tuple[int, int, int, str]], kind: str = "attention"
    ) -> "KVSpec":
        """Lay out `(num_kv_heads, k_dim, v_dim, dtype)` per layer, one page after the other.

        `kind` names what is in a page; an engine with pages of its own gives a kind of its own.
        """
        layers = []
        offset = 0
        for num_kv_heads, k_dim, v_dim, dtype in shapes:
            layer = LayerSpec(offset, num_kv_heads, k_dim, v_dim, dtype, kind)
            layers.append(layer)
            offset += layer.page_bytes(block_size)
        return cls(block_size, offset, tuple(layers))

    def num_blocks_for(self, num_tokens: int) -> int:
        """The number of blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def page_range(self, block_id: int, layer: int) -> tuple[int, int]:
        """The byte range `(start, end)` of one page in the pool."""
        spec = self.layers[layer]
        start = block_id * self.row_bytes + spec.offset
        return start, start + spec.page_bytes(self.block_size)

    def stripe(self, layers: range) -> tuple[int, int]:
        """The offset in the row, and the size in bytes, of the pages of adjacent layers."""
        last = self.layers[layers[-1]]
        offset = self.layers[layers[0]].offset
        return offset, last.offset + last.page_bytes(self.block_size) - offset

    def difference(self, other: "KVSpec") -> str | None:
        """The first difference, in words; None when the specs are equal."""
        for name in ("block_size", "row_bytes"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return f"{name} {ours} != {theirs}"
        if len(self.layers) != len(other.layers):
            return f"layers {len(self.layers)} != {len(other.layers)}"
        for index, (ours, theirs) in enumerate(zip(self.layers, other.layers, strict=True)):
            if ours != theirs:
                return f"layer {index}: {ours} != {theirs}"
        return None

    def digest(self) -> str:
        """A short hex digest for registration and logs."""
        return sha256(repr(self).encode()).hexdigest()[:16]


def to_wire(spec: KVSpec) -> handoff_pb2.KvSpec:
    layers = [
        handoff_pb2.KvLayer(
            offset=layer.offset,
            num_kv_heads=layer.num_kv_heads,
            k_dim=layer.k_dim,
            v_dim=layer.v_dim,
            dtype=layer.dtype,
            kind=layer.kind,
        )
        for layer in spec.layers
    ]
    return handoff_pb2.KvSpec(block_size=spec.block_size, row_bytes=spec.row_bytes, layers=layers)


def from_wire(message: handoff_pb2.KvSpec) -> KVSpec:
    layers = tuple(
        LayerSpec(
            layer.offset, layer.num_kv_heads, layer.k_dim, layer.v_dim, layer.dtype, layer.kind
        )
        for layer in message.layers
    )
    return KVSpec(message.block_size, message.row_bytes, layers)
