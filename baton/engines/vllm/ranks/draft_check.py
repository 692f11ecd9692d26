"""Checks drafts in a rank: one is taken exactly where Baton's sampler chooses that very token.

In place of vLLM's rejection sampler, which keeps the probabilities of the tokens but not the tokens
themselves: with it, an answer would depend on which steps had drafts. vLLM refuses a logits
processor beside speculation because its rejection sampler would not call it; this one does.
"""

from collections.abc import Sequence
from itertools import islice, takewhile
from operator import eq
from typing import Any

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID

from baton.engines.vllm.row_choice import RowChoice


class NoDrafter:
    """Takes the place of vLLM's drafter: the engine gives the scheduler its drafts itself."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, model: Any) -> None:
        """There is nothing to load."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """No drafts."""
        return [[] for _ in sampled_token_ids]


class DraftCheck:
    """Stands for the rejection sampler of vLLM's runner; `sampler` is the runner's own."""

    def __init__(self, sampler: Any, choice: RowChoice) -> None:
        self._sampler = sampler
        self._choice = choice

    def __call__(
        self, metadata: Any, draft_probs: None, logits: torch.Tensor, sampling_metadata: Any
    ) -> Any:
        """Sample a step. `logits` has, for each sequence, a row for its next token and one behind
        each token of its draft. Returns vLLM's SamplerOutput."""
        if not any(metadata.num_draft_tokens):
            return self._sampler(logits=logits, sampling_metadata=sampling_metadata)
        drafted = iter(metadata.draft_token_ids.tolist())
        drafts = [list(islice(drafted, num)) for num in metadata.num_draft_tokens]
        left = logits.to(torch.float32, copy=True)
        self._choice.apply_behind(left, drafts)
        tokens, rows = _taken(left.argmax(-1), drafts)
        num_logprobs, logprobs = sampling_metadata.max_num_logprobs, None
        if num_logprobs is not None:
            raw = self._sampler.compute_logprobs(logits)[rows.flatten()]
            own = tokens.clamp(min=0).flatten()
            logprobs = self._sampler.gather_logprobs(raw, num_logprobs, own)
        return SamplerOutput(tokens.to(torch.int32), logprobs)


def _taken(
    chosen: torch.Tensor, drafts: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that each sequence gets, and their rows `[num_sequences, longest draft + 1]`: its
    draft as far as it was right, and the token that was chosen behind that."""
    shape = len(drafts), 1 + max(map(len, drafts))
    tokens = chosen.new_full(shape, PLACEHOLDER_TOKEN_ID)
    rows = torch.zeros_like(tokens)
    first = 0
    for index, draft in enumerate(drafts):
        right = takewhile(bool, map(eq, draft, chosen[first : first + len(draft)].tolist()))
        end = first + 1 + sum(right)
        tokens[index, : end - first] = chosen[first:end]
        rows[index, : end - first] = torch.arange(first, end)
        first += 1 + len(draft)
    return tokens, rows


def check_drafts(worker: Any) -> None:
    """Let this rank take drafts; `worker` is vLLM's. Instead of vLLM's option for a logits
    processor, which is refused beside speculation."""
    runner = worker.model_runner
    choice = RowChoice(runner.vllm_config, runner.device, False)
    runner.input_batch.logitsprocs.non_argmax_invariant.append(choice)
    runner.rejection_sampler = DraftCheck(runner.sampler, choice)
