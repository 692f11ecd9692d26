"""One worker: what it holds, by the code that loads models, and how fast it should be.

Rates are computed from data sheets and two assumed shares of them, or they are the operator's own
measurements.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.cli.sizing.machines import Accelerator, Traffic

# Parts of the data sheet's figures that a worker is assumed to reach.
FLOPS_REACHED = 0.4
BANDWIDTH_REACHED = 0.6
# ... and that several ranks keep, which wait for each other at each layer.
RANKS_REACH = 0.85
BATCHES = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
# A pool below these thrashes: the chart refuses it, too.
KV_LENGTHS = 4  # sequences of the longest length
KV_TOKENS_PER_SLOT = 512
_LENGTH_STEP = 1024


class DoesNotFit(Exception):
    """The message is one line that says what to change."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model as a step needs them. FLOPs are of one token."""

    num_bytes: int
    flops: float
    attention_flops: float  # for each token of context


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker of so many ranks holds with `max_batch` sequences; bytes are of all ranks."""

    weights: Weights
    activation_bytes: int
    kv_bytes_per_token: int
    num_kv_tokens: int
    num_ranks: int
    max_batch: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Rates:
    """The speed of a worker. Measured ones, where given, stand for computed ones."""

    device: Accelerator
    prefill_measured: float | None = None  # tokens a second
    decode_measured: float | None = None

    def prefill(self, worker: Worker, traffic: Traffic) -> float:
        """Prompt tokens a second that are computed."""
        if self.prefill_measured is not None:
            return self.prefill_measured
        mean_context = traffic.num_prompt_tokens * (1 + traffic.cached_share) / 2
        attention = worker.weights.attention_flops * mean_context
        return self._flops(worker) / (worker.weights.flops + attention)

    def decode(self, worker: Worker, traffic: Traffic) -> float:
        """Output tokens a second with a full batch."""
        if self.decode_measured is not None:
            return self.decode_measured
        return worker.max_batch / self.step_s(worker, traffic, worker.max_batch)

    def step_s(self, worker: Worker, traffic: Traffic, batch: float) -> float:
        """The step of a batch: it reads all weights and contexts, and computes."""
        assert self.device.terabytes_per_s is not None
        context_bytes = worker.kv_bytes_per_token * traffic.mean_context
        reached = BANDWIDTH_REACHED * _speedup(worker.num_ranks)
        bandwidth = self.device.terabytes_per_s * 1e12 * reached
        read_s = (worker.weights.num_bytes + batch * context_bytes) / bandwidth
        attention = worker.weights.attention_flops * traffic.mean_context
        return max(read_s, batch * (worker.weights.flops + attention) / self._flops(worker))

    @property
    def has_steps(self) -> bool:
        """The length of a step can be computed."""
        return self.device.terabytes_per_s is not None

    def _flops(self, worker: Worker) -> float:
        assert self.device.tflops is not None
        return self.device.tflops * 1e12 * FLOPS_REACHED * _speedup(worker.num_ranks)


def _speedup(num_ranks: int) -> float:
    return num_ranks * RANKS_REACH if num_ranks > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of a worker: what the operator fixes; None = chosen here."""

    max_model_len: int | None = None
    max_batch: int | None = None


def choose_worker(
    worker_of: Callable[[int], Worker], wanted: Wanted, rates: Rates, traffic: Traffic
) -> Worker:
    """The worker with the largest batch that keeps the token gap and leaves each sequence its room.

    `worker_of` gives the worker for a batch, with the model's own length. Raises DoesNotFit.
    """
    for batch in (wanted.max_batch,) if wanted.max_batch else BATCHES:
        worker = _with_length(worker_of(batch), wanted, traffic)
        if wanted.max_batch or batch == BATCHES[-1] or _is_well(worker, rates, traffic):
            return worker
    raise AssertionError("the last batch is always taken")


def _is_well(worker: Worker, rates: Rates, traffic: Traffic) -> bool:
    slot = max(KV_TOKENS_PER_SLOT, traffic.num_tokens)
    if worker.max_batch * slot > worker.num_kv_tokens:
        return False
    return not rates.has_steps or rates.step_s(worker, traffic, worker.max_batch) <= traffic.itl_s


def _with_length(worker: Worker, wanted: Wanted, traffic: Traffic) -> Worker:
    """The longest sequence: as asked for, or what the pool holds several of."""
    length = wanted.max_model_len
    if length is None:
        most = worker.num_kv_tokens // KV_LENGTHS // _LENGTH_STEP * _LENGTH_STEP
        length = min(worker.max_model_len, max(most, traffic.num_tokens))
    # As `choose_pool` has it: a pool is never larger than full batches of the longest sequences.
    num_kv_tokens = min(worker.num_kv_tokens, worker.max_batch * length)
    return replace(worker, max_model_len=length, num_kv_tokens=num_kv_tokens)
