"""How long vLLM's steps take, by what is in them: for reports, health, and the size of the next.

A step with something in it that never ran before, such as the first logprobs, may compile code for
seconds. It has no expected time, so that nobody takes it for a core that stands still.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from baton.engine.protocol.messages import EngineLoad
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.step_timer import LoadMeter
from baton.engines.vllm.step_bill import Share

if TYPE_CHECKING:
    from baton.engines.vllm.sequences import VllmSequence

# Of a step that computes nothing: it copies blocks, or finds room for them.
_LEAST_S = 0.001


class StepPace:
    """The pace of one engine; `expect` before each step, `ran` after it."""

    def __init__(self, max_step_tokens: int, max_step_s: float | None) -> None:
        self.meter = LoadMeter()
        self._max_step_tokens = max_step_tokens
        self._chunks = ChunkPolicy(max_step_tokens, max_step_s)
        self._known: set[str] = set()
        self._parts: set[str] = set()
        self._num_prefill_tokens = self._num_decodes = 0
        self._probe_s: float | None = None

    def most_tokens(self, num_decodes: int, may_lengthen: bool, num_drafted: int) -> int:
        """The tokens that a step with so many decodes and drafted tokens may compute."""
        num_prefill = self._chunks.max_prefill_tokens(num_decodes, may_lengthen)
        most = num_decodes + num_drafted + num_prefill
        return max(1, min(most, self._max_step_tokens))

    def chunk_tokens(self, num_decodes: int) -> int:
        """Prefill tokens that a step takes beside so many decodes."""
        return self._chunks.allowed_tokens(max(1, num_decodes), may_lengthen=False)

    def expect(self, shares: Sequence[Share], seqs: "Sequence[VllmSequence]") -> float | None:
        """How long the step should take; None when there is something new in it."""
        self._num_prefill_tokens = sum(share.num_tokens for share in shares if share.is_prefill)
        self._num_decodes = sum(not share.is_prefill for share in shares)
        self._parts = set().union(*map(_parts_of, seqs))
        if any(share.num_tokens > 1 and not share.is_prefill for share in shares):
            self._parts.add("drafts")
        if not self._parts <= self._known:
            return None
        expected_s = self._chunks.expected_s(self._num_prefill_tokens, self._num_decodes)
        return None if expected_s is None else max(expected_s, _LEAST_S)

    def ran(self, step_s: float) -> None:
        """The expected step took so long. The first one of a kind says nothing of later ones."""
        num_prefill_tokens, num_decodes = self._num_prefill_tokens, self._num_decodes
        is_new = not self._parts <= self._known
        self._known |= self._parts
        if is_new or not (num_prefill_tokens or num_decodes):
            return
        self.meter.observe(step_s, num_prefill_tokens, num_decodes)
        self._chunks.observe(step_s, num_prefill_tokens, num_decodes)

    def expect_probe(self) -> float | None:
        """How long a probe should take; None before the first."""
        return self._probe_s

    def probed(self, step_s: float) -> None:
        """A probe took so long."""
        self._probe_s = step_s
        self.meter.observe_short(step_s)


def is_outranked(scheduler: Any, may_run: Callable[[Any], bool]) -> bool:
    """A running request has a higher priority than the prompt that vLLM reads next."""
    running, waiting = scheduler.running, filter(may_run, scheduler.waiting)
    unread = (each for each in running if each.num_tokens - each.num_computed_tokens > 1)
    prompt = next(unread, None) or next(waiting, None)
    if prompt is None or not running:
        return False
    # Of two with one priority a quiet tenant's has the smaller number (`sequences.py`).
    return bool(-min(each.priority for each in running) // 2 > -prompt.priority // 2)


def load_of(scheduler: Any, seqs: "Sequence[VllmSequence]", pace: StepPace) -> EngineLoad:
    """The load of vLLM's scheduler with these sequences."""
    num_running = len(scheduler.running)
    return EngineLoad(
        num_running=num_running,
        num_waiting=sum(map(_waits, seqs)),
        num_blocks_free=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        num_blocks_promised=0,
        num_queued_prefill_tokens=sum(seq.num_to_compute for seq in seqs if not seq.is_over),
        prefill_tokens_per_s=pace.meter.prefill_tokens_per_s,
        decode_step_s=pace.meter.decode_step_s,
        num_not_started=sum(seq.is_remote for seq in seqs),
        num_parked=sum(seq.is_parked and seq.next_index > seq.add.num_emitted for seq in seqs),
        chunk_tokens=pace.chunk_tokens(num_running),
    )


def _waits(seq: "VllmSequence") -> bool:
    """It will take a place in the batch, or holds blocks for it. One without a reader that has lost
    its blocks lets others go first."""
    status = seq.request.status.name
    if seq.is_remote or seq.is_over:
        return False
    if status == "PREEMPTED":
        return not seq.is_parked
    return status in ("WAITING", "WAITING_FOR_REMOTE_KVS")


def _parts_of(seq: "VllmSequence") -> set[str]:
    """What a step computes for a sequence beside its tokens."""
    sampling = seq.add.sampling
    parts = {
        "sampling": bool(sampling.temperature),
        "logprobs": sampling.num_logprobs is not None,
        "prompt_logprobs": sampling.num_prompt_logprobs is not None,
        "handoff": seq.add.kind != "local",
        "adapter": bool(seq.add.adapter),
    }
    return {"tokens", *(name for name, is_there in parts.items() if is_there)}
