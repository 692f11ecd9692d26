"""How many workers of each kind, what they carry, and what does not fit.

The arithmetic is that of docs/operations.md, "Sizing".
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from baton.cli.sizing.machines import Machines, Traffic
from baton.cli.sizing.worker import (
    KV_LENGTHS,
    KV_TOKENS_PER_SLOT,
    DoesNotFit,
    Rates,
    Wanted,
    Worker,
    choose_worker,
)
from baton.engine.kv.handoff_rows import num_ring_rows
from baton.wire.kv_spec import KVSpec

# Of what a pool could do at most: at the limit queues grow without bound.
LOAD = 2 / 3
# Measured between two processes on one machine (docs/benchmarks/handoff.md).
GRPC_BYTES_PER_S = 0.84e9
# Beside the staging ring in host memory through which a GPU's blocks are handed over: processes,
# and the few weights that are on their way to the GPU.
HOST_BYTES = 8 * 2**30
_PACE_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """The pools of one model. `num_prefill` 0 = the only worker does both."""

    worker: Worker
    rates: Rates
    traffic: Traffic
    machines: Machines
    num_prefill: int
    num_decode: int

    @property
    def prefill_rate(self) -> float:
        """Requests a second of one prefill worker that has no pause."""
        return _prefill_rate(self.worker, self.rates, self.traffic)

    @property
    def decode_rate(self) -> float:
        """Requests a second of one decode worker with a full batch."""
        return _decode_rate(self.worker, self.rates, self.traffic)

    @property
    def num_needed(self) -> tuple[int, int]:
        """The least prefill and decode workers that carry the traffic with a third to spare."""
        rate = self.traffic.rate / LOAD
        return math.ceil(rate / self.prefill_rate), math.ceil(rate / self.decode_rate)

    @property
    def carried(self) -> float:
        """Requests a second, with a third to spare."""
        return LOAD * self._most(self.num_prefill, self.num_decode)

    @property
    def carried_with_one_down(self) -> float:
        """Requests a second while a worker of the pool that is scarcer is away."""
        without_decode = self._most(self.num_prefill, self.num_decode - 1)
        if not self.num_prefill:
            return without_decode
        return min(without_decode, self._most(self.num_prefill - 1, self.num_decode))

    @property
    def prefill_s(self) -> float:
        """The prompt of a request alone on its worker."""
        return 1 / self.prefill_rate

    @property
    def ttft_s(self) -> float:
        """Mean time to first token: prefill, and the wait of a queue with even services
        (Sakasegawa's approximation for several workers)."""
        num_workers = self.num_prefill or self.num_decode
        most = self.num_prefill * self.prefill_rate or self._most(0, self.num_decode)
        load = self.traffic.rate / most
        if load >= 1:
            return math.inf
        crowding: float = load ** (math.sqrt(2 * (num_workers + 1)) - 1)
        return self.prefill_s * (1 + crowding / (num_workers * (1 - load)) / 2)

    @property
    def step_s(self) -> float | None:
        """The token gap at this traffic; None = only measured rates are known."""
        if not self.rates.has_steps:
            return None
        pace = self.traffic.rate * self.traffic.num_output_tokens / self.num_decode
        batch = 1.0
        for _ in range(_PACE_ROUNDS):
            step_s = self.rates.step_s(self.worker, self.traffic, batch)
            batch = min(max(1.0, pace * step_s), self.worker.max_batch)
        return step_s

    @property
    def blocks_per_s(self) -> tuple[float, float]:
        """Bytes a second from prefill to decode workers: as cached, and with nothing cached."""
        if not self.num_prefill:
            return 0.0, 0.0
        size = self.traffic.rate * self.worker.kv_bytes_per_token
        return size * self.traffic.num_computed_tokens, size * self.traffic.num_prompt_tokens

    @property
    def host_bytes(self) -> int:
        """Host memory of a worker on GPUs."""
        return self.staging_bytes + HOST_BYTES

    @property
    def staging_bytes(self) -> int:
        """The staging ring of a worker on GPUs, as a worker chooses it."""
        worker = self.worker
        spec = KVSpec(1, worker.kv_bytes_per_token, ())
        rows = num_ring_rows(spec, worker.num_kv_tokens, worker.max_model_len, None)
        return rows * worker.kv_bytes_per_token

    @property
    def num_devices(self) -> int:
        return (self.num_prefill + self.num_decode) * self.worker.num_ranks

    def problems(self) -> Iterator[str]:
        """What does not fit, each with what to do."""
        yield from self._kv_problems()
        yield from self._rate_problems()
        traffic, step_s = self.traffic, self.step_s
        if traffic.ttft_s is not None and self.ttft_s > traffic.ttft_s:
            yield (
                f"a first token takes {_ms(self.ttft_s)} in the mean, {_ms(self.prefill_s)} of it "
                f"for the prompt alone, {_ms(traffic.ttft_s)} are wanted: take more or faster "
                "GPUs, a larger --tp, or find more in the cache"
            )
        if step_s is not None and step_s > traffic.itl_s:
            yield (
                f"tokens are {_ms(step_s)} apart, {_ms(traffic.itl_s)} are wanted: take more "
                "GPUs, faster ones or a larger --tp"
            )

    def _kv_problems(self) -> Iterator[str]:
        worker, traffic = self.worker, self.traffic
        num_tokens = worker.num_kv_tokens
        if traffic.num_tokens > worker.max_model_len:
            yield (
                f"prompt and output are {traffic.num_tokens:,} tokens, a sequence may have "
                f"{worker.max_model_len:,}: raise --max-model-len, or take another model"
            )
        least = min(KV_LENGTHS, worker.max_batch) * worker.max_model_len
        if num_tokens < least:
            yield (
                f"{num_tokens:,} tokens of KV a worker are fewer than {KV_LENGTHS} sequences of "
                f"{worker.max_model_len:,}: lower --max-model-len, or take --engine vllm with a "
                "larger --tp, or a larger GPU"
            )
        slot = min(KV_TOKENS_PER_SLOT, worker.max_model_len)
        if num_tokens < slot * worker.max_batch:
            yield (
                f"{num_tokens:,} tokens of KV a worker are fewer than {slot} for "
                f"each of {worker.max_batch} sequences: lower --max-batch"
            )

    def _rate_problems(self) -> Iterator[str]:
        if self.carried < self.traffic.rate:
            num_needed = sum(self.num_needed) * self.worker.num_ranks
            yield (
                f"{self.num_devices} devices carry {self.carried:.2f} requests/s with a third to "
                f"spare, {self.traffic.rate:g} are wanted: {num_needed} devices would"
            )

    def _most(self, num_prefill: int, num_decode: int) -> float:
        """Requests a second. Without a prefill worker the decode workers compute prompts, too."""
        if not num_prefill:
            return num_decode / (1 / self.prefill_rate + 1 / self.decode_rate)
        return min(num_prefill * self.prefill_rate, num_decode * self.decode_rate)


def make_plan(
    worker_of: Callable[[int], Worker],
    wanted: Wanted,
    rates: Rates,
    traffic: Traffic,
    machines: Machines,
) -> Plan:
    """Divide the machines between the pools, or say how many it takes. Raises DoesNotFit."""
    worker = choose_worker(worker_of, wanted, rates, traffic)
    prefill_rate = _prefill_rate(worker, rates, traffic)
    decode_rate = _decode_rate(worker, rates, traffic)
    if machines.num_devices is None:
        needed = Plan(worker, rates, traffic, machines, 1, 1).num_needed
        num_prefill, num_decode = needed[0] + 1, needed[1] + 1  # one that may be away
    else:
        num_workers = _num_workers(machines, worker.num_ranks)
        num_prefill = _best_share(num_workers, prefill_rate, decode_rate)
        num_decode = num_workers - num_prefill
    return Plan(worker, rates, traffic, machines, num_prefill, num_decode)


def _num_workers(machines: Machines, num_ranks: int) -> int:
    """A worker's ranks are on one node."""
    per_node = machines.devices_per_node or 0
    if num_ranks > per_node:
        raise DoesNotFit(f"--tp {num_ranks}: a node has {per_node} devices, and a worker one node")
    return per_node // num_ranks * machines.num_nodes


def _best_share(num_workers: int, prefill_rate: float, decode_rate: float) -> int:
    """The prefill workers with which most requests are carried."""

    def carried(num_prefill: int) -> float:
        return min(num_prefill * prefill_rate, (num_workers - num_prefill) * decode_rate)

    return max(range(1, num_workers), key=carried, default=0)


def _prefill_rate(worker: Worker, rates: Rates, traffic: Traffic) -> float:
    return rates.prefill(worker, traffic) / traffic.num_computed_tokens


def _decode_rate(worker: Worker, rates: Rates, traffic: Traffic) -> float:
    return rates.decode(worker, traffic) / traffic.num_output_tokens


def _ms(seconds: float) -> str:
    return "for ever" if math.isinf(seconds) else f"{seconds * 1000:,.0f} ms"
