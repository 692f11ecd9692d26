"""Guesses the next tokens of vLLM's sequences from their own text, for their next step to check.

The guesses are those of Baton's own engine (prompt lookup), made beside the scheduler and not by a
drafter of vLLM's: here it is known how many tokens a sequence may still emit. A guess is taken only
where Baton's sampler chooses that very token (`ranks/draft_check.py`).
"""

from collections.abc import Sequence
from typing import Any

from baton.engine.sequence.prompt_lookup import PromptLookup
from baton.engine.step.speculation import MAX_STEP_DRAFT_TOKENS
from baton.engines.vllm.row_choice import TokenArray
from baton.engines.vllm.sequences import VllmSequence
from baton.engines.vllm.state import VllmState


class Drafts:
    """The drafts of one engine; a sequence gets at most `num_tokens` in a step."""

    def __init__(self, state: VllmState, num_tokens: int, max_step_tokens: int) -> None:
        self._state = state
        self._num_tokens = num_tokens
        self._max_step_tokens = max_step_tokens

    def propose(self, running: Sequence[Any]) -> int:
        """Give these requests of vLLM's drafts, as far as credit and step go. Returns the number of
        drafted tokens.

        There are none while blocks are rare: vLLM would take those of other sequences for them.
        """
        for request in running:
            request.spec_token_ids = []
        pool = self._state.scheduler.kv_cache_manager.block_pool
        # Each needs one block at most for its next token, and another for its draft.
        if not self._num_tokens or pool.get_num_free_blocks() < 2 * len(running):
            return 0
        room = all_room = min(self._max_step_tokens - len(running), MAX_STEP_DRAFT_TOKENS)
        decodes = [request for request in running if self._can_draft(request)]
        for num_done, request in enumerate(decodes):
            limit = min(room // (len(decodes) - num_done), self._num_tokens)
            request.spec_token_ids = self._draft(self._state.seqs[request.request_id], limit)
            room -= len(request.spec_token_ids)
        return all_room - room

    def _can_draft(self, request: Any) -> bool:
        """A decode without a grammar: masks are worked out for the next token only."""
        seq = self._state.seqs.get(request.request_id)
        is_decode = request.num_tokens - request.num_computed_tokens == 1
        return seq is not None and is_decode and seq.add.kind != "prefill" and seq.grammar is None

    def _draft(self, seq: VllmSequence, limit: int) -> list[int]:
        request, info = seq.request, self._state.info
        num_left = min(
            seq.credit - seq.next_index,
            seq.add.sampling.max_tokens - seq.next_index,
            info.max_model_len - request.num_tokens,
        )
        limit = min(limit, num_left - 1)  # a step brings one token more than it drafts
        if limit < 1:
            return []
        if seq.tokens is None or seq.lookup is None:
            seq.tokens = TokenArray(info.max_model_len + 1)
            seq.lookup = PromptLookup(self._num_tokens)
        tokens = seq.tokens.extend(request._all_token_ids[len(seq.tokens) :])
        return list(seq.lookup.propose(tokens, limit))
