"""The messages about the prefix cache, both ways; part of `messages.py`."""

import msgspec


class SnapshotHashes(msgspec.Struct, array_like=True, tag="snapshot"):
    """Ask for all hashes in the prefix cache.

    Answered in StepEvents.snapshot, as they are after the KV events of that same message.
    """


class StoredBlocks(msgspec.Struct, array_like=True):
    """Full blocks that entered the prefix cache, as a chain below `parent_hash`."""

    parent_hash: bytes
    hashes: bytes
