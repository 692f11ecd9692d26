"""The message from core to front that brings a vector; part of `messages.py`."""

import msgspec


class Pooled(msgspec.Struct, array_like=True):
    """The vector of a sequence that pools, float32 little-endian; it ends with that."""

    seq_id: int
    vector: bytes
