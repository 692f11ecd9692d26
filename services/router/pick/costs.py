"""The parts of a pair's score, in seconds (decision 0018). Pure."""

from collections.abc import Sequence
from statistics import median_low

from services.router.fleet.views import Demand, Policy, WorkerView

# Measured step times of equally fast workers differ by less: cold steps, lagging or old means.
NOISE_FACTOR = 4.0


def prompt_blocks(demand: Demand, view: WorkerView) -> int:
    """Blocks that hold the prompt and the first token."""
    return -(-(demand.num_prompt_tokens + 1) // view.shape.block_size)


def remote_s(demand: Demand, prefill: WorkerView) -> float:
    """Seconds until a prefill worker has computed the prompt."""
    tokens = prefill.num_queued_prefill_tokens + prefill.missing_tokens(demand.num_prompt_tokens)
    return tokens / prefill.speed.prefill_tokens_per_s


def ttft_s(demand: Demand, decode: WorkerView, prefill: WorkerView | None) -> dict[str, float]:
    """Seconds until the decode worker has the first token and the blocks, by part."""
    computing = prefill or decode
    rate = computing.speed.prefill_tokens_per_s
    costs = {
        "wait": computing.num_queued_prefill_tokens / rate,
        "prefill": computing.missing_tokens(demand.num_prompt_tokens) / rate,
    }
    if prefill:
        shape = decode.shape
        num_blocks = -(-decode.missing_tokens(demand.num_prompt_tokens) // shape.block_size)
        sent_s = num_blocks * shape.block_bytes / decode.speed.handoff_bytes_per_s
        costs["transfer"] = decode.speed.handoff_s + sent_s
    return costs


def steps_s(
    demand: Demand, decode: WorkerView, prefill: WorkerView | None, pool_step_s: float
) -> float:
    """Seconds of the decode steps, which the rates of prompt tokens leave out: one idle step, or
    for local prefill beside running sequences one step of their batch per chunk."""
    if prefill or not decode.num_running:
        return pool_step_s
    num_tokens = decode.num_queued_prefill_tokens + decode.missing_tokens(demand.num_prompt_tokens)
    num_steps = -(-num_tokens // decode.chunk_tokens) if decode.chunk_tokens else 1
    return num_steps * decode.speed.decode_step_s


def delay_s(demand: Demand, decode: WorkerView, policy: Policy) -> float:
    """Seconds that the streams on the decode worker lose by a local prefill, in sum, weighted."""
    missing = decode.missing_tokens(demand.num_prompt_tokens)
    own_s = missing / decode.speed.prefill_tokens_per_s
    return policy.itl_weight * decode.num_running * own_s


def _idle_step_s(decode: WorkerView, policy: Policy) -> float:
    """Seconds of a decode step with an empty batch, scaled from the one that was measured."""
    return decode.speed.decode_step_s / (1 + decode.num_running / policy.batch_doubling)


def idle_pool_step_s(decodes: Sequence[WorkerView], policy: Policy) -> float:
    """Seconds of the pool's idle step: the lower median, so that one slow worker does not count."""
    steps = [_idle_step_s(decode, policy) for decode in decodes]
    return median_low(steps) if steps else 0.0


def itl_increase_s(demand: Demand, decode: WorkerView, policy: Policy, pool_step_s: float) -> float:
    """Seconds that the output takes longer than on an idle worker of the pool, weighted.

    A pool's workers count as equally fast: a mean that lags behind a changing batch, or was taken
    long ago, would send whole bursts to one of them. A worker counts as slow only while it runs
    sequences and its steps are slower by more than NOISE_FACTOR; an idle one is tried again.
    """
    step_s = _idle_step_s(decode, policy)
    is_slow = decode.num_running > 0 and step_s > NOISE_FACTOR * pool_step_s
    batch = decode.num_sequences + demand.num_choices
    longer_s = (step_s if is_slow else pool_step_s) * (1 + batch / policy.batch_doubling)
    return policy.itl_weight * (longer_s - pool_step_s) * max(1, demand.expected_output_tokens)


def engine_s(demand: Demand, decode: WorkerView, prefill: WorkerView | None) -> float:
    """Seconds of the engines that the request takes: what is not cached of its prompt, the handoff,
    and its share of the decode steps in which its choices run beside others."""
    parts = ttft_s(demand, decode, prefill)
    batch = decode.num_sequences + demand.num_choices
    step_share_s = decode.speed.decode_step_s * demand.num_choices / batch
    own_s = parts["prefill"] + parts.get("transfer", 0.0)
    return own_s + step_share_s * max(1, demand.expected_output_tokens)


def first_token_s(
    demand: Demand, decode: WorkerView, prefill: WorkerView | None, pool_step_s: float
) -> float:
    """Seconds from the pick to the first token; 0 where the rate of prefill was not measured."""
    if not (prefill or decode).speed.is_measured:
        return 0.0
    ttft = ttft_s(demand, decode, prefill)
    return sum(ttft.values()) + steps_s(demand, decode, prefill, pool_step_s)
