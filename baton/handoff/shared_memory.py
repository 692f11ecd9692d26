"""The transport of one host: the decode worker copies pages straight out of the peer's pool.

The prefill worker hands its pool over read-only and of a sealed size (`rendezvous.py`); frames name
blocks of it. They stay held until Done, Abort or the end of the lease. One copy, at the speed of
memory. A page that was given away too early has another checksum when it has been copied. Both
workers are of one trust domain: this one can read the whole pool (see decision 0010).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.checksum import place_checksum
from baton.handoff.rendezvous import NONCE_BYTES, Rendezvous, RendezvousFailed, hand_over
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Deliver, Pages, TransportFailed, check_size
from baton.system.memory_file import NotSealed, map_sealed
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

NAME = "shm"


class SharedMemorySender:
    """Names blocks of the pool that the peer has mapped."""

    name = NAME

    def __init__(self, blocks: BlockBytes) -> None:
        self._blocks = blocks

    def pack(self, frame: handoff_pb2.Blocks, block_ids: Sequence[int]) -> None:
        frame.shm_ref.num_bytes = len(block_ids) * self._blocks.page_bytes(frame.layer)
        frame.shm_ref.block_ids.extend(block_ids)
        frame.checksum = self._blocks.checksum(frame.layer, block_ids, place_checksum(frame))


class SharedMemoryReceiver:
    """Finds the pages of a frame in the peer's pool."""

    name = NAME

    def __init__(self, peer_blocks: BlockBytes) -> None:
        self._peer_blocks: BlockBytes | None = peer_blocks

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        try:
            pages = self._find(frame)
        except BadBlocks as error:
            deliver(error)
        else:
            deliver(pages)

    def close(self) -> None:
        """The mapping ends with the last page that was delivered."""
        self._peer_blocks = None

    def _find(self, frame: handoff_pb2.Blocks) -> Pages:
        blocks = self._peer_blocks
        if blocks is None or frame.WhichOneof("payload") != "shm_ref":
            raise BadBlocks("payload", "the frame names no shared blocks")
        ids = check_block_ids(frame.shm_ref.block_ids, frame.num_blocks, blocks.num_blocks)
        check_size(frame.shm_ref.num_bytes, len(ids) * blocks.page_bytes(frame.layer))
        return Pages(blocks.pages(frame.layer, ids))


@dataclass(frozen=True, slots=True)
class SharedPool:
    """A worker's pool, and its sealed file for peers; None = private."""

    worker_id: str
    blocks: BlockBytes
    fd: int | None


class SharedMemoryTransport:
    """What a worker with a handoff folder can do."""

    name = NAME

    def __init__(
        self, folder: Path, pool: SharedPool, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._folder = folder
        self._pool = pool
        self._random_bytes = random_bytes

    def offer(self, hello: handoff_pb2.DecodeHello) -> "SharedMemoryOffer":
        """Raises TransportFailed."""
        nonce = self._random_bytes(NONCE_BYTES).hex()
        try:
            rendezvous = Rendezvous(self._folder, nonce)
        except OSError as error:
            raise TransportFailed(f"the handoff folder: {error.strerror}") from error
        hello.shm_nonce = nonce
        return SharedMemoryOffer(rendezvous, self._pool.blocks.spec)

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> SharedMemorySender:
        """Raises TransportFailed when the peer has another folder."""
        pool = self._pool
        if pool.fd is None:
            raise TransportFailed("this worker's pool is private")
        try:
            hand_over(self._folder, hello.shm_nonce, pool.worker_id.encode(), pool.fd)
        except (OSError, ValueError) as error:
            raise TransportFailed(f"no common folder: {error}") from error
        return SharedMemorySender(pool.blocks)


class SharedMemoryOffer:
    """Between the two hellos of one link."""

    def __init__(self, rendezvous: Rendezvous, spec: KVSpec) -> None:
        self._rendezvous = rendezvous
        self._spec = spec

    def connect(self, answer: handoff_pb2.PrefillHello) -> SharedMemoryReceiver:
        """Map the pool that the peer has handed over. Raises TransportFailed."""
        try:
            sender, fd = self._rendezvous.receive()
            try:
                pool = memoryview(map_sealed(fd))
            finally:
                os.close(fd)
            if sender != answer.worker_id.encode():
                raise TransportFailed("another worker's pool was handed over")
            return SharedMemoryReceiver(BlockBytes(self._spec, pool))
        except (RendezvousFailed, NotSealed, OSError, ValueError) as error:
            raise TransportFailed(f"the peer's pool: {error}") from error

    def close(self) -> None:
        self._rendezvous.close()


def check_block_ids(block_ids: Sequence[int], num_wanted: int, num_blocks: int) -> list[int]:
    """The ids of a reference. Raises BadBlocks when they are no blocks of the peer's pool."""
    if len(block_ids) != num_wanted:
        raise BadBlocks("size", f"{len(block_ids)} blocks named where {num_wanted} belong")
    ids = list(block_ids)
    if max(ids) >= num_blocks:
        raise BadBlocks("range", f"block {max(ids)} of a pool of {num_blocks}")
    return ids
