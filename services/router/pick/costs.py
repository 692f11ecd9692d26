"""The parts of a pair's score, in seconds (decision 0018). Pure."""

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from services.router.fleet.views import Demand, Policy, WorkerView
from services.router.pick.sessions import SESSION_TOKENS

# Measured step times of equally fast workers differ by less: cold steps, lagging or old means.
NOISE_FACTOR = 4.0


def prompt_blocks(demand: Demand, view: WorkerView) -> int:
    """Blocks that hold the prompt and the first token."""
    return -(-(demand.num_prompt_tokens + 1) // view.shape.block_size)


def is_far(prefill: WorkerView, decode: WorkerView) -> bool:
    """Return whether a handoff between the two leaves its zone, as far as that is known."""
    return prefill.zone != decode.zone and bool(prefill.zone and decode.zone)


def uncached_tokens(num_prompt_tokens: int, view: WorkerView) -> int:
    """Prompt tokens for a worker to compute; at least the last one, for its logits."""
    return max(1, num_prompt_tokens - view.num_cached_tokens)


def missing_tokens(demand: Demand, view: WorkerView) -> int:
    """Prompt tokens that a worker has to compute or receive, with the bonus of its session."""
    missing = uncached_tokens(demand.num_prompt_tokens, view)
    return max(1, missing - SESSION_TOKENS) if view.worker_id in demand.session else missing


def remote_s(demand: Demand, prefill: WorkerView) -> float:
    """Seconds until a prefill worker has computed the prompt."""
    tokens = prefill.num_queued_prefill_tokens + missing_tokens(demand, prefill)
    return tokens / prefill.speed.prefill_tokens_per_s


class Costs(NamedTuple):
    """The seconds that a pair costs a request, by part, in the order of the formula."""

    wait_s: float
    prefill_s: float
    handoff_s: float
    steps_s: float
    itl_s: float
    streams_s: float
    zone_s: float

    @property
    def first_token_s(self) -> float:
        return self.wait_s + self.prefill_s + self.handoff_s + self.steps_s


class PickCosts:
    """The costs of one request's pairs; an idle decode step of the pool takes `pool_step_s`."""

    def __init__(self, demand: Demand, policy: Policy, pool_step_s: float) -> None:
        self._demand = demand
        self._policy = policy
        self._pool_step_s = pool_step_s
        self._num_output_tokens = max(1, demand.expected_output_tokens)

    def of(self, decode: WorkerView, prefill: WorkerView | None, step_s: float) -> Costs:
        """Return the costs of a pair; no `prefill` = local prefill. A decode step takes `step_s`
        there with the request."""
        computing = prefill or decode
        rate = computing.speed.prefill_tokens_per_s
        itl_s = self._policy.itl_weight * (step_s - self._pool_step_s) * self._num_output_tokens
        wait_s = computing.num_queued_prefill_tokens / rate
        prefill_s = missing_tokens(self._demand, computing) / rate
        if prefill is None:
            steps_s, streams_s = self._local_steps_s(decode), self._delay_s(decode)
            return Costs(wait_s, prefill_s, 0.0, steps_s, itl_s, streams_s, 0.0)
        handoff_s, steps_s = self._handoff_s(decode, prefill), self._step_wait_s(decode)
        zone_s = self._policy.far_handoff_cost_s if is_far(prefill, decode) else 0.0
        return Costs(wait_s, prefill_s, handoff_s, steps_s, itl_s, 0.0, zone_s)

    def step_s(self, decode: WorkerView) -> float:
        """Seconds of a decode step there with this request in the batch.

        A pool's workers count as equally fast: a mean that lags behind a changing batch, or was
        taken long ago, would send whole bursts to one of them. A worker counts as slow only while
        it runs sequences and its steps are slower by more than NOISE_FACTOR; an idle one is tried
        again.
        """
        own_s = _idle_step_s(decode, self._policy)
        is_slow = decode.num_running > 0 and own_s > NOISE_FACTOR * self._pool_step_s
        batch = decode.num_sequences + self._demand.num_choices
        return (own_s if is_slow else self._pool_step_s) * (1 + batch / self._policy.batch_doubling)

    def engine_s(self, decode: WorkerView, costs: Costs) -> float:
        """Seconds of the engines that the request takes: what is not cached of its prompt, the
        handoff, and its share of the decode steps in which its choices run beside others."""
        batch = decode.num_sequences + self._demand.num_choices
        step_share_s = decode.speed.decode_step_s * self._demand.num_choices / batch
        return costs.prefill_s + costs.handoff_s + step_share_s * self._num_output_tokens

    def _handoff_s(self, decode: WorkerView, prefill: WorkerView) -> float:
        """Seconds in which the blocks that the decode worker misses are handed over."""
        shape, speed, policy = decode.shape, decode.speed, self._policy
        missing = missing_tokens(self._demand, decode)
        num_bytes = -(-missing // shape.block_size) * shape.block_bytes
        least_s, bytes_per_s = speed.handoff_s, speed.handoff_bytes_per_s
        link = policy.links.between(prefill.zone, decode.zone) if is_far(prefill, decode) else None
        if link is not None:
            least_s = link.least_s or least_s
            slow = min(bytes_per_s, policy.prior_far_handoff_bytes_per_s)
            bytes_per_s = link.bytes_per_s or slow
        return least_s + num_bytes / bytes_per_s

    def _step_wait_s(self, decode: WorkerView) -> float:
        """Seconds until the decode worker lets the request in, which a step that runs there holds
        up: as measured, or an idle step."""
        return (decode.num_running and decode.speed.step_wait_s) or self._pool_step_s

    def _local_steps_s(self, decode: WorkerView) -> float:
        """Seconds of the decode steps beside a local prefill, which the rates of prompt tokens
        leave out: one step of the running batch per chunk, or an idle step."""
        if not decode.num_running:
            return self._pool_step_s
        missing = uncached_tokens(self._demand.num_prompt_tokens, decode)
        num_tokens = decode.num_queued_prefill_tokens + missing
        num_steps = -(-num_tokens // decode.chunk_tokens) if decode.chunk_tokens else 1
        return num_steps * decode.speed.decode_step_s

    def _delay_s(self, decode: WorkerView) -> float:
        """Seconds that the streams on the decode worker lose by a local prefill, weighted."""
        missing = uncached_tokens(self._demand.num_prompt_tokens, decode)
        own_s = missing / decode.speed.prefill_tokens_per_s
        return self._policy.itl_weight * decode.num_running * own_s


def idle_pool_step_s(decodes: Sequence[WorkerView], policy: Policy) -> float:
    """Seconds of the pool's idle step: the lower median, so that one slow worker does not count."""
    steps = [_idle_step_s(decode, policy) for decode in decodes]
    return median_low(steps) if steps else 0.0


def _idle_step_s(decode: WorkerView, policy: Policy) -> float:
    """Seconds of a decode step with an empty batch, scaled from the one that was measured."""
    return decode.speed.decode_step_s / (1 + decode.num_running / policy.batch_doubling)
