"""The messages between front and core about blocks that move from device to device.

Part of `messages.py`. A worker that has its pool in shared memory sends and gets none of them.
"""

from typing import Literal

import msgspec


class DevicePool(msgspec.Struct, frozen=True, array_like=True):
    """The address, for NIXL, of the blocks where the core computes with them."""

    agent: bytes
    address: int
    # In NIXL's words: "VRAM" or "DRAM", and which device.
    memory: str
    device_id: int


class OpenPeer(msgspec.Struct, array_like=True, tag="open_peer"):
    """A link to a worker with a pool that can be read from here; commands name it by `link_id`."""

    link_id: int
    pool: DevicePool


class ClosePeer(msgspec.Struct, array_like=True, tag="close_peer"):
    """The link is gone; nothing of it is read any more."""

    link_id: int


class ReadPages(msgspec.Struct, array_like=True, tag="read_pages"):
    """Copy pages of one layer out of a peer's pool into blocks of a Bound sequence, and check them.

    Answered by one PagesRead, unless EndReads comes first. `checksums` are (index in the lists,
    checksum) of the pages that are to be checked.
    """

    read_id: int
    transfer_id: int
    link_id: int
    layer: int
    peer_block_ids: list[int]
    block_ids: list[int]
    checksums: list[tuple[int, int]]


class EndReads(msgspec.Struct, array_like=True, tag="end_reads"):
    """From here on no read of this transfer writes into a block."""

    transfer_id: int


DeviceCommand = OpenPeer | ClosePeer | ReadPages | EndReads


class BlockChecksums(msgspec.Struct, array_like=True):
    """The checksums of one final block, by its index in the sequence: one per layer (u64)."""

    index: int
    sums: list[int]


class PagesRead(msgspec.Struct, array_like=True):
    """A ReadPages has ended: the pages are in their blocks, unless a `cause` says why not.

    `message` says more about the cause, in one line.
    """

    read_id: int
    cause: Literal["checksum", "transport"] | None = None
    message: str = ""
