"""A worker's core on a CPU with a cache and a staging ring, as on a GPU.

For `bench.gpu handoff --device cpu`: the product's core with its own model, its copies through
the ring and its reads by NIXL, all on host memory. Options are those of a worker's core.
"""

import gc

# As the product's core.
if __name__ == "__main__":
    gc.disable()

import sys
from collections.abc import Sequence

import numpy as np
import torch

from baton.model.gpu.block_staging import BlockStaging
from baton.model.gpu.device_pages import DevicePages
from baton.model.load.load import LoadedModel
from baton.model.load.memory_need import LargestStep
from baton.model.tensors.side_stream import side_stream
from baton.model.torch_runner import TorchRunner
from baton.worker.core_main import end_process, main


class OwnPoolRunner(TorchRunner):
    """Computes in a pool of its own."""

    _staging: BlockStaging | None = None

    def bind_ring(self, ring: memoryview, num_blocks: int) -> None:
        self.bind_pool(np.zeros(num_blocks * self.kv_spec.row_bytes, np.uint8).data)
        self._staging = BlockStaging.of_pool(self._pool, ring, side_stream(torch.device("cpu")))

    def device_pages(self, ring_bytes: int) -> DevicePages:
        return DevicePages(self._pool, ring_bytes)

    @property
    def num_copies_begun(self) -> int:
        return 0 if self._staging is None else self._staging.num_begun

    def poll_copies(self) -> int:
        return 0 if self._staging is None else self._staging.poll()

    def upload(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        assert self._staging is not None, "a ring is bound"
        self._staging.upload(rows, block_ids)

    def download(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        assert self._staging is not None, "a ring is bound"
        self._staging.download(block_ids, rows)


def make_runner(
    loaded: LoadedModel,
    step: LargestStep,
    device: torch.device,
    *,
    has_graphs: bool,
    is_deterministic: bool,
) -> tuple[OwnPoolRunner, LoadedModel]:
    """In place of `baton.model.device.make_runner`."""
    return OwnPoolRunner(loaded, is_deterministic=is_deterministic), loaded


if __name__ == "__main__":
    end_process(main(sys.argv[1:], make_runner))
