"""The machines that workers run on, and the traffic that they are to carry.

Figures of GPUs are those of their makers' data sheets: dense bfloat16 without sparsity, SXM form
where nothing else is said. Nothing here was measured.
"""

from dataclasses import dataclass

GIB = 2**30
# Of a GPU: the driver's context and libraries, gone before a worker counts what is free. On a CPU:
# the processes of the worker beside model and pool, as the chart counts them.
_TAKEN_GIB = {True: 0.6, False: 0.5}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device of a worker: a GPU, or the memory that a worker on CPUs has."""

    name: str
    memory_gib: float  # as nvidia-smi tells it
    tflops: float | None = None
    terabytes_per_s: float | None = None

    @property
    def is_gpu(self) -> bool:
        return self.name != CPU

    @property
    def free_bytes(self) -> int:
        """What a worker finds free before it loads a model."""
        return int((self.memory_gib - _TAKEN_GIB[self.is_gpu]) * GIB)


CPU = "cpu"
# https://www.nvidia.com/en-us/data-center/ (h100, h200, a100, l40s, l4, a10g's numbers: AWS G5),
# DGX B200's data sheet for one of its eight.
ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("b200", 179.0, 2250, 8.0),
        Accelerator("h200", 140.4, 989, 4.8),
        Accelerator("h100", 79.6, 989, 3.35),
        Accelerator("h100-pcie", 79.6, 756, 2.0),
        Accelerator("a100-80", 80.0, 312, 2.0),
        Accelerator("a100-40", 40.0, 312, 1.55),
        Accelerator("l40s", 45.0, 362, 0.86),
        Accelerator("l4", 22.5, 121, 0.3),
        Accelerator("a10g", 22.5, 70, 0.6),
        Accelerator(CPU, 0.0),
    )
}


@dataclass(frozen=True, slots=True)
class Machines:
    """The devices that are there, evenly over the nodes."""

    device: Accelerator
    num_devices: int | None = None  # None = as many as it takes
    num_nodes: int = 1

    @property
    def devices_per_node(self) -> int | None:
        return None if self.num_devices is None else self.num_devices // self.num_nodes


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests to serve, and how fast."""

    rate: float  # a second
    num_prompt_tokens: int
    num_output_tokens: int
    cached_share: float = 0.0  # of the prompt tokens
    ttft_s: float | None = None
    itl_s: float = 0.05

    @property
    def num_computed_tokens(self) -> float:
        """Of a prompt, without what is cached."""
        return self.num_prompt_tokens * (1 - self.cached_share)

    @property
    def num_tokens(self) -> int:
        """Of a request at its end."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def mean_context(self) -> float:
        """Tokens that a sequence holds while it decodes."""
        return self.num_prompt_tokens + self.num_output_tokens / 2
