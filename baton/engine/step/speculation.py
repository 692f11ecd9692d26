"""Speculation: gives decodes of a step guesses of their next tokens, to be checked by that step.

A guess is taken exactly when it is what the sequence would have sampled there anyway: the noise of
a token depends on (seed, choice, index) alone, so the output is the same with and without guesses,
as far as the model computes the same logits for one row and for several. What changes is how many
steps it takes. Wrong guesses cost their rows: a sequence that is guessed badly gets fewer, then
none for a while, and a large batch gets none, because its rows are not free.
"""

from baton.engine.kv.block_manager import BlockManager
from baton.engine.protocol.messages import EngineInfo
from baton.engine.sequence.prompt_lookup import PromptLookup
from baton.engine.sequence.sequence import Sequence
from baton.engine.step.step_plan import ScheduledSequence, StepPlan

# Guessed tokens of one step, over all sequences.
MAX_STEP_DRAFT_TOKENS = 64


class DraftProposer:
    """Guesses for one engine; a sequence gets at most `num_tokens` in a step."""

    def __init__(
        self, num_tokens: int, max_step_tokens: int, info: EngineInfo, manager: BlockManager
    ) -> None:
        self._num_tokens = num_tokens
        self._max_step_tokens = max_step_tokens
        self._info = info
        self._manager = manager

    def propose(self, plan: StepPlan) -> None:
        """Add drafts to the plan's decodes, as far as credit, step and free blocks go."""
        plan.take_plain()
        decodes = [scheduled for scheduled in plan.sequences if _can_draft(scheduled)]
        room = min(self._max_step_tokens - plan.num_query_tokens, MAX_STEP_DRAFT_TOKENS)
        for num_done, scheduled in enumerate(decodes):
            limit = min(room // (len(decodes) - num_done), self._num_tokens)
            draft = self._draft_for(scheduled.seq, limit, reserve=len(plan.sequences))
            plan.add_draft(scheduled, draft)
            room -= len(draft)

    def _draft_for(self, seq: Sequence, limit: int, reserve: int) -> tuple[int, ...]:
        # A step brings one token more than it drafts.
        num_left = min(
            seq.credit - seq.num_output_tokens,
            seq.request.sampling.max_tokens - seq.num_output_tokens,
            self._info.max_model_len - seq.num_tokens,
        )
        limit = min(limit, num_left - 1)
        limit = self._manager.num_slots_ahead(seq, limit, reserve)
        if limit < 1:
            return ()
        if seq.lookup is None:
            seq.lookup = PromptLookup(self._num_tokens)
        draft = seq.lookup.propose(seq.tokens(0, seq.num_tokens), limit)
        self._manager.grow_ahead(seq, len(draft))
        return draft


def _can_draft(scheduled: ScheduledSequence) -> bool:
    """A decode that samples one token of its own; its grammar, if any, can look ahead."""
    seq = scheduled.seq
    is_last_token = scheduled.num_new_tokens == 1 and scheduled.completes
    is_decode = is_last_token and seq.request.kind != "prefill"
    is_alone = seq.group is None and not scheduled.forks
    grammar = seq.grammar
    is_free = grammar is None or (grammar.is_ready and grammar.can_look_ahead)
    return is_decode and is_alone and is_free
