"""Steps of fixed sizes, each captured once as a CUDA graph and then replayed.

A replay launches hundreds of kernels as one, over inputs and outputs that never move; a batch is
padded to the next size. On other devices a size is run as it is, so that padding can be tested
without a GPU. Knows neither models nor what is in a step.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable

import torch

SIZE_STEP = 8
# Tokens of the steps of other kinds. Larger ones compute for longer than they take to launch.
TOKEN_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def decode_sizes(max_size: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to `max_size`, which is always the last."""
    sizes = {1, 2, 4, *range(SIZE_STEP, max_size, SIZE_STEP), max_size}
    return sorted(size for size in sizes if size <= max_size)


def token_sizes(max_tokens: int) -> list[int]:
    """TOKEN_SIZES up to `max_tokens`."""
    return [size for size in TOKEN_SIZES if size <= max_tokens]


class StepGraphs:
    """`forward(size)` runs a padded step over inputs that `prepare(size)` has filled."""

    def __init__(
        self,
        sizes: list[int],
        device: torch.device,
        forward: Callable[[int], None],
        prepare: Callable[[int], None],
    ) -> None:
        self.sizes = sizes
        self._device = device
        self._forward, self._prepare = forward, prepare
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def num_captured(self) -> int:
        return len(self._graphs)

    def size_for(self, number: int) -> int | None:
        """The smallest size that holds so many; None when there is none."""
        index = bisect_left(self.sizes, number)
        return self.sizes[index] if index < len(self.sizes) else None

    def clear(self) -> None:
        """Forget what was captured: memory that the forward pass uses has moved."""
        self._graphs = {}

    def capture(self, sizes: list[int] | None = None) -> None:
        """Capture these sizes (default: all), largest first: the others fit into its memory.

        Does nothing without a GPU. Raises RuntimeError when the forward pass does something that
        cannot be captured.
        """
        self.clear()
        if self._device.type != "cuda":
            return
        memory = torch.cuda.graph_pool_handle()
        gc.collect()  # nothing may be freed while a graph is captured
        for size in sorted(sizes or self.sizes, reverse=True):
            self._prepare(size)
            self._forward(size)  # compiles kernels, fills caches
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._forward(size)
            self._graphs[size] = graph
        torch.cuda.synchronize()

    def run(self, size: int) -> None:
        """Run a step of that size over the inputs as they are now."""
        graph = self._graphs.get(size)
        if graph is None:
            self._forward(size)
        else:
            graph.replay()
