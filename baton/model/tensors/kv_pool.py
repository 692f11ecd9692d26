"""Torch views over the shared bytes of the KV pool, `[num_blocks, row_bytes]` (decision 0030).

The pool is memory that front and core both map, so no view may ever copy it: note that
`index_select` along any dimension but the first copies its whole source, indexing does not.
Knows nothing of sequences and of the owners of blocks.
"""

import torch

from baton.wire.kv_spec import KVSpec, LayerSpec

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_BYTE = torch.uint8
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class KVPool:
    """Per layer, K `[num_blocks, num_kv_heads, block_size, k_dim]` and V alike, in place."""

    def __init__(self, spec: KVSpec, pool: memoryview | torch.Tensor) -> None:
        """View `pool` (writable, whole rows; a tensor is of bytes). The views keep it alive."""
        values = pool if isinstance(pool, torch.Tensor) else torch.frombuffer(pool, dtype=_BYTE)
        assert values.numel() % spec.row_bytes == 0, (values.numel(), spec.row_bytes)
        self.spec = spec
        self.num_blocks = values.numel() // spec.row_bytes
        self.rows = values.view(self.num_blocks, -1)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for layer in spec.layers:
            keys, values = self._page_views(layer)
            self.keys.append(keys)
            self.values.append(values)

    def copy_block(self, source: int, target: int) -> None:
        """Copy all layers of one block."""
        self.rows[target] = self.rows[source]

    def _page_views(self, layer: LayerSpec) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = TORCH_DTYPES[layer.dtype]
        size, block_size = dtype.itemsize, self.spec.block_size
        assert self.spec.row_bytes % size == 0, (self.spec.row_bytes, layer.dtype)
        assert layer.offset % size == 0, (layer.offset, layer.dtype)
        flat = self.rows.view(dtype).flatten()
        row, start = self.spec.row_bytes // size, layer.offset // size
        heads = layer.num_kv_heads

        def view(dim: int, offset: int) -> torch.Tensor:
            shape = (self.num_blocks, heads, block_size, dim)
            return flat.as_strided(shape, (row, block_size * dim, dim, 1), offset)

        return (
            view(layer.k_dim, start),
            view(layer.v_dim, start + heads * block_size * layer.k_dim),
        )
