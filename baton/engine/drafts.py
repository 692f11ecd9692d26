"""Speculation: gives decodes of a step guesses of their next tokens, to be checked by that step.

A guess is taken exactly when it is what the sequence would have sampled there anyway: the noise of
a token depends on (seed, choice, index) alone, so the output is the same with and without guesses,
as far as the model computes the same logits for one row and for several. What changes is how many
steps it takes. Wrong guesses cost their rows: a sequence that is guessed badly gets fewer, then
none for a while, and a large batch gets none, because its rows are not free.
"""

from baton.engine.block_manager import BlockManager
from baton.engine.messages import EngineInfo
from baton.engine.ngram import NgramIndex
from baton.engine.scheduler import StepPlan, Work
from baton.engine.sequence import Sequence

# Guessed tokens of one step, over all sequences.
MAX_STEP_DRAFT_TOKENS = 64
# Steps without a guess after a sequence's first wrong one; they double with each further one.
FIRST_REST = 1
MAX_REST = 32


class PromptLookup:
    """How well one sequence can be guessed, learned from what became of its last draft."""

    def __init__(self, max_tokens: int) -> None:
        self._index = NgramIndex()
        self._max_tokens = max_tokens
        self._num_ahead = max_tokens
        self._num_drafted = 0
        self._num_tokens_then = 0
        self._num_rests = 0
        self._rest = FIRST_REST

    def propose(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that may follow the sequence's last one."""
        self._learn(seq.num_tokens)
        if self._num_rests > 0:
            self._num_rests -= 1
            return ()
        num_tokens = min(limit, self._num_ahead)
        draft = self._index.propose(seq.tokens(0, seq.num_tokens), num_tokens)
        self._num_drafted, self._num_tokens_then = len(draft), seq.num_tokens
        return draft

    def _learn(self, num_tokens: int) -> None:
        num_drafted, self._num_drafted = self._num_drafted, 0
        num_accepted = num_tokens - self._num_tokens_then - 1
        if num_drafted == 0 or num_accepted < 0:
            return
        if num_accepted == num_drafted:
            self._num_ahead = min(2 * self._num_ahead, self._max_tokens)
        else:
            self._num_ahead = max(1, num_accepted)
        if num_accepted:
            self._rest = FIRST_REST
        else:
            self._num_rests = self._rest
            self._rest = min(2 * self._rest, MAX_REST)


class Drafter:
    """Of one engine. `num_tokens` is the most that one sequence gets in a step."""

    def __init__(
        self, num_tokens: int, max_step_tokens: int, info: EngineInfo, manager: BlockManager
    ) -> None:
        self._num_tokens = num_tokens
        self._max_step_tokens = max_step_tokens
        self._info = info
        self._manager = manager

    def draft(self, plan: StepPlan) -> None:
        """Add drafts to the plan's decodes, as far as credit, step and free blocks go."""
        if self._num_tokens == 0:
            return
        decodes = [work for work in plan.works if _can_draft(work)]
        room = self._max_step_tokens - sum(work.num_query_tokens for work in plan.works)
        room = min(room, MAX_STEP_DRAFT_TOKENS)
        for num_done, work in enumerate(decodes):
            share = room // (len(decodes) - num_done)
            work.draft = self._draft_for(work.seq, min(share, self._num_tokens), len(plan.works))
            room -= len(work.draft)

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
        draft = seq.lookup.propose(seq, limit)
        self._manager.grow_ahead(seq, len(draft))
        return draft


def _can_draft(work: Work) -> bool:
    """A decode that samples one token of its own and whose grammar, if any, can look ahead."""
    seq = work.seq
    is_decode = work.num_new_tokens == 1 and work.completes and seq.request.kind != "prefill"
    is_alone = seq.group is None and not work.forks
    grammar = seq.grammar
    is_free = grammar is None or (grammar.is_ready and grammar.can_look_ahead)
    return is_decode and is_alone and is_free
