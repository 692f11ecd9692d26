"""Divides the time of each step among its sequences, to the last microsecond (decision 0043).

A step's prefill has the share that its tokens cost lately, and divides it by tokens; its decodes
have the rest, and divide it by rows. What a token costs does not depend on its context here.
"""

from baton.engine.kv.block_manager import BlockManager
from baton.engine.protocol.messages import StepEvents
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.step_plan import ScheduledSequence, StepPlan

# Steps of decodes alone, in which none ends, tell once in so many what blocks were held.
_HELD_EVERY = 8


class StepShares:
    """The time of one engine's steps. The manager is told the time, too: for how long sequences
    hold their blocks.

    A step's time begins when the step before it was computed, or with its turn if there was nothing
    to compute: so all that a busy core does is on some bill.
    """

    def __init__(self, manager: BlockManager, chunks: ChunkPolicy) -> None:
        # Steps follow each other.
        self.is_busy = False
        self._manager = manager
        self._chunks = chunks
        # Time of steps that was not reported yet.
        self._busy_us = 0
        self._num_untold = 0

    def begin(self, now_us: int) -> None:
        """There was nothing to compute before now."""
        self._manager.now_us = now_us

    def charge(self, plan: StepPlan, now_us: int, events: StepEvents) -> None:
        """The step is computed: note what each of its sequences cost."""
        step_us = now_us - self._manager.now_us
        self._manager.now_us = now_us
        self._busy_us += step_us
        sequences = plan.sequences
        self.is_busy = bool(sequences)
        if plan.num_prefill_tokens:
            self._charge_mixed(plan, step_us, events)
        elif plan.num_draft_tokens:
            events.spent_us = _divide_by_tokens(step_us, sequences)
        elif sequences:
            events.spent_us = divide_evenly(step_us, len(sequences))
        events.spent_seq_ids = plan.seq_ids

    def tell_held(self, plan: StepPlan, events: StepEvents) -> None:
        """The step is committed: note for how long its sequences have held blocks, if it is time.
        Those that have ended held them until the step was computed."""
        self._num_untold += 1
        if self._num_untold == _HELD_EVERY or plan.num_prefill_tokens or events.finished:
            self._num_untold = 0
            now_us = self._manager.now_us
            tables = [scheduled.seq.table for scheduled in plan.sequences]
            events.held_block_us = [table.take_block_us(now_us) for table in tables]

    def take_busy_us(self) -> int:
        """The time of all steps since the last call, probes included."""
        busy_us, self._busy_us = self._busy_us, 0
        return busy_us

    def _charge_mixed(self, plan: StepPlan, step_us: int, events: StepEvents) -> None:
        share = self._chunks.prefill_share(plan.num_prefill_tokens, plan.num_decodes)
        prefill_us = round(step_us * share)
        places = range(len(plan.sequences))
        prefills = [plan.sequences[place] for place in plan.prefills]
        decodes = [plan.sequences[place] for place in places if place not in plan.prefills]
        of_prefills = iter(_divide_by_tokens(prefill_us, prefills))
        of_decodes = iter(_divide_by_tokens(step_us - prefill_us, decodes))
        for place in places:
            is_prefill = place in plan.prefills
            spent_us = next(of_prefills if is_prefill else of_decodes)
            events.spent_us.append(spent_us)
            if is_prefill:
                num_tokens = plan.sequences[place].num_new_tokens
                events.prefills.append((place, spent_us * plan.prefills[place] // num_tokens))


def divide(total: int, weights: list[int]) -> list[int]:
    """Whole parts of a total in proportion to weights above 0; their sum is the total."""
    whole = sum(weights)
    parts, done, weighed = [], 0, 0
    for weight in weights:
        weighed += weight
        end = total * weighed // whole
        parts.append(end - done)
        done = end
    return parts


def divide_evenly(total: int, num_parts: int) -> list[int]:
    """Whole parts of a total that differ by one at most; their sum is the total."""
    part, num_larger = divmod(total, num_parts)
    return [part + 1] * num_larger + [part] * (num_parts - num_larger)


def _divide_by_tokens(total: int, scheduled: list[ScheduledSequence]) -> list[int]:
    return divide(total, [each.num_query_tokens for each in scheduled])
