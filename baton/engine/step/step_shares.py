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
    hold their blocks."""

    def __init__(self, manager: BlockManager, chunks: ChunkPolicy) -> None:
        self._manager = manager
        self._chunks = chunks
        self._turn_us = 0
        # Time of steps that was not reported yet.
        self._busy_us = 0
        self._num_untold = 0

    def begin_turn(self, now_us: int) -> None:
        """Commands are applied and a step is planned from now on."""
        self._turn_us = self._manager.now_us = now_us

    def computed(self, now_us: int) -> None:
        """The runner is done; sequences that end now have held their blocks up to now."""
        self._manager.now_us = now_us

    def charge(self, plan: StepPlan, now_us: int, events: StepEvents) -> None:
        """The turn is over: note what each sequence of its step cost."""
        step_us = now_us - self._turn_us
        self._busy_us += step_us
        sequences = plan.sequences
        if plan.num_prefill_tokens:
            self._charge_mixed(plan, step_us, events)
        elif plan.num_draft_tokens:
            events.spent_us = _divide_by_tokens(step_us, sequences)
        elif sequences:
            events.spent_us = divide_evenly(step_us, len(sequences))
        events.spent_seq_ids = [scheduled.seq.request.seq_id for scheduled in sequences]
        self._num_untold += 1
        if self._num_untold == _HELD_EVERY or plan.num_prefill_tokens or events.finished:
            self._num_untold = 0
            tables = [scheduled.seq.table for scheduled in sequences]
            events.held_block_us = [table.take_block_us(now_us) for table in tables]

    def take_busy_us(self) -> int:
        """The time of all steps since the last call, probes included."""
        busy_us, self._busy_us = self._busy_us, 0
        return busy_us

    def _charge_mixed(self, plan: StepPlan, step_us: int, events: StepEvents) -> None:
        share = self._chunks.prefill_share(plan.num_prefill_tokens, plan.num_decodes)
        prefill_us = round(step_us * share)
        prefills = [scheduled for scheduled in plan.sequences if scheduled.is_prefill]
        decodes = [scheduled for scheduled in plan.sequences if not scheduled.is_prefill]
        of_prefills = iter(_divide_by_tokens(prefill_us, prefills))
        of_decodes = iter(_divide_by_tokens(step_us - prefill_us, decodes))
        for index, scheduled in enumerate(plan.sequences):
            if not scheduled.is_prefill:
                events.spent_us.append(next(of_decodes))
                continue
            spent_us = next(of_prefills)
            redone_us = spent_us * scheduled.num_redone_tokens // scheduled.num_new_tokens
            events.spent_us.append(spent_us)
            events.prefills.append((index, redone_us))


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
