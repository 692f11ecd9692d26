"""The KV that both processes of `python -m bench handoff` agree on, its bytes and its pace."""

import mmap
import os
from pathlib import Path

import numpy as np

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.negotiation import Transports
from baton.handoff.transports.shared_memory import SharedPool
from baton.system.memory_file import create_memory_file, open_sealed, resize_and_map
from baton.wire.kv_spec import KVSpec
from baton.worker.transports import HandoffOptions, make_transports

BLOCK_SIZE = 16
# 16 layers of 8 KV heads of 128 dimensions in bfloat16: pages of 64 KiB, 1 MiB per block.
SPEC = KVSpec.of_layers(BLOCK_SIZE, [(8, 128, 128, "bfloat16")] * 16)
# Steps of a prefill that takes its time.
NUM_CHUNKS = 16
PEER_ID = "peer"
BARE_METHOD = "/bench.Bare/Stream"


def source_bytes(num_blocks: int) -> bytes:
    """The same in every process."""
    return np.random.default_rng(7).bytes(num_blocks * SPEC.row_bytes)


class Pool:
    """A pool in shared memory, as a worker's is."""

    def __init__(self, num_blocks: int, spec: KVSpec = SPEC) -> None:
        fd = create_memory_file("baton-bench-pool")
        self.memory: mmap.mmap = resize_and_map(fd, num_blocks * spec.row_bytes)
        self.blocks = BlockBytes(spec, memoryview(self.memory))
        self.fd = open_sealed(fd)
        os.close(fd)

    def transports(self, names: tuple[str, ...], folder: Path, *, is_sender: bool) -> Transports:
        """Raises NixlMissing."""
        shared = SharedPool(PEER_ID if is_sender else "bench", self.blocks, self.fd)
        options = HandoffOptions(names, folder)
        return make_transports(options, shared, os.urandom, is_sender=is_sender)
