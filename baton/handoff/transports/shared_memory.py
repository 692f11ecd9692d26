"""The transport of one host: the decode worker copies pages straight out of the peer's pool.

The prefill worker hands its pool over read-only and of a sealed size (`rendezvous.py`); frames name
blocks of it. They stay held until Done, Abort or the end of the lease. One copy, at the speed of
memory. A page that was given away too early has another checksum when it has been copied. Both
workers are of one trust domain: this one can read the whole pool (see decision 0010).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.stripes import layer_groups, layers_of
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Deliver, HostPages, TransportFailed
from baton.handoff.transports.pool_ref import PoolRefSender, read_pool_ref
from baton.handoff.transports.rendezvous import NONCE_BYTES, Rendezvous, RendezvousFailed, hand_over
from baton.system.memory_file import NotSealed, map_sealed
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

NAME = "shm"
# A frame costs both fronts about as much as copying 1 MiB; copying one of these takes 2 ms.
MAX_FRAME_BYTES = 8 * 2**20


class SharedMemoryReceiver:
    """Finds the pages of a frame in the peer's pool."""

    name = NAME
    is_on_device = False

    def __init__(self, peer_blocks: BlockBytes) -> None:
        self._peer_blocks: BlockBytes | None = peer_blocks

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        try:
            pages = self._find(frame)
        except BadBlocks as error:
            deliver(error)
        else:
            deliver(pages)

    def end(self, xfer_id: int) -> None:
        """Pages were written when they were delivered, or will not be."""

    def close(self) -> None:
        """The mapping ends with the last page that was delivered."""
        self._peer_blocks = None

    def _find(self, frame: handoff_pb2.Blocks) -> HostPages:
        blocks = self._peer_blocks
        if blocks is None:
            raise BadBlocks(BadBlocksCause.TRANSPORT, "the link is closed")
        ids = read_pool_ref(frame, blocks.spec)
        if max(ids) >= blocks.num_blocks:
            raise BadBlocks(
                BadBlocksCause.RANGE, f"block {max(ids)} of a pool of {blocks.num_blocks}"
            )
        return HostPages(blocks.addresses(layers_of(frame), ids))


@dataclass(frozen=True, slots=True)
class SharedPool:
    """A worker's pool, and its sealed file for peers; None = private."""

    worker_id: str
    blocks: BlockBytes
    fd: int | None


class SharedMemoryTransport:
    """The transport of a worker with a handoff folder."""

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
    ) -> PoolRefSender:
        """Raises TransportFailed when the peer has another folder."""
        pool = self._pool
        if pool.fd is None:
            raise TransportFailed("this worker's pool is private")
        try:
            hand_over(self._folder, hello.shm_nonce, pool.worker_id.encode(), pool.fd)
        except (OSError, ValueError) as error:
            raise TransportFailed(f"no common folder: {error}") from error
        groups = layer_groups(pool.blocks.spec, hello)
        return PoolRefSender(NAME, pool.blocks, groups, MAX_FRAME_BYTES)


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
