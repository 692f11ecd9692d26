"""Chooses each token by Baton's rules, as a logits processor of vLLM.

vLLM samples greedily, and this processor leaves it one token to choose. So a seed, penalties and
every other option mean what they mean in Baton's own engine, and a sequence goes on elsewhere
behind the tokens that it has as if it had never moved: its noise is counted by the index among its
output tokens, and its penalties count those of earlier attempts as output.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from baton.engine.protocol.batch import RowLogprobs, SampleRow, TokenHistory
from baton.engine.protocol.messages import Fork, SamplingParams
from baton.engines.vllm.model_facts import end_token_ids
from baton.model.sampling.logit_edits import is_edited
from baton.model.sampling.row_sampler import RowSampler, SamplingOps

# The key among vLLM's own arguments for plugins.
EXTRA_KEY = "baton"


@dataclass(slots=True)
class RowOptions:
    """A sequence as the processor knows it; `num_emitted` tokens at the end of what vLLM takes for
    the prompt are output."""

    seq_id: int
    choice: int
    sampling: SamplingParams
    num_emitted: int
    # Further choices, whose first tokens are sampled beside its own.
    forks: tuple[Fork, ...] = ()
    # By seq_id: what was sampled for those, with logprobs where they are wanted.
    first_tokens: dict[int, tuple[int, RowLogprobs | None]] = field(default_factory=dict)
    # The tokens that a grammar allows next; None: all.
    mask: NDArray[np.int32] | None = None


class TokenArray:
    """A sequence's tokens in one array, which grows with the list that has them."""

    def __init__(self, max_tokens: int) -> None:
        self._array = np.empty(max_tokens, np.uint32)
        self._num_tokens = 0

    def __len__(self) -> int:
        return self._num_tokens

    def extend(self, tokens: list[int]) -> NDArray[np.uint32]:
        """Add tokens. Returns all, as a view."""
        end = self._num_tokens + len(tokens)
        self._array[self._num_tokens : end] = tokens
        self._num_tokens = end
        return self._array[:end]


class _Row:
    """One sequence in the batch; `outputs` is vLLM's own list, which grows."""

    def __init__(self, options: RowOptions, prompt: list[int], outputs: list[int]) -> None:
        self.options = options
        self._outputs = outputs
        self._num_prompt_tokens = len(prompt) - options.num_emitted
        self._num_given = len(prompt)
        self._tokens = TokenArray(len(prompt) + options.sampling.max_tokens + 1)
        self._tokens.extend(prompt)

    def sample_rows(self, draft: Sequence[int], mask_row: int | None) -> list[SampleRow]:
        """What is to be sampled now, and behind each token of its draft."""
        own = self._sample_row(mask_row)
        rows = [own]
        for end in range(1, len(draft) + 1):
            history = own.history and own.history._replace(draft=tuple(draft[:end]))
            rows.append(replace(own, output_index=own.output_index + end, history=history))
        return rows

    def _sample_row(self, mask_row: int | None) -> SampleRow:
        options, params = self.options, self.options.sampling
        return SampleRow(
            token_row=0,
            params=params,
            choice=options.choice,
            output_index=options.num_emitted + len(self._outputs),
            history=self._history() if has_penalty(params) else None,
            mask_row=mask_row,
        )

    def fork_rows(self, own: SampleRow) -> list[SampleRow]:
        """The first tokens of its other choices, which come from the same logits."""
        return [
            replace(own, choice=fork.choice, num_logprobs=own.params.num_logprobs)
            for fork in (() if own.output_index else self.options.forks)
        ]

    def _history(self) -> TokenHistory:
        tokens = self._tokens.extend(self._outputs[len(self._tokens) - self._num_given :])
        return TokenHistory(self.options.seq_id, tokens, self._num_prompt_tokens)


class RowChoice(LogitsProcessor):  # type: ignore[misc]
    """The processor of one rank. vLLM makes it; logits stay on its device."""

    def __init__(
        self,
        vllm_config: Any,
        device: torch.device,
        is_pin_memory: bool,
        ops: SamplingOps | None = None,
    ) -> None:
        """`ops` None: those for the device."""
        model = vllm_config.model_config
        ops = ops or _ops_of(device, model.get_vocab_size())
        self._sampler = RowSampler(end_token_ids(model), ops)
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False: it works on rows that vLLM takes for greedy."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the rows of the batch."""
        process_dict_updates(self._rows, batch_update, _row_of)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one token in each row that is not simply greedy, and sample for further choices."""
        self.apply_behind(logits, [()] * len(logits))
        return logits

    def apply_behind(self, logits: torch.Tensor, drafts: Sequence[Sequence[int]]) -> None:
        """The same, where each sequence has a row for its next token and one behind each token of
        its draft."""
        places, masks = _masks_of(self._rows)
        starts = [0, *accumulate(1 + len(draft) for draft in drafts)]
        rows = {
            starts[index] + behind: each
            for index, row in self._rows.items()
            for behind, each in enumerate(row.sample_rows(drafts[index], places.get(index)))
        }
        chosen = {
            index: row for index, row in rows.items() if row.params.temperature or is_edited(row)
        }
        forks = {i: row.fork_rows(rows[starts[i]]) for i, row in self._rows.items()}
        indexes = [*chosen, *(starts[i] for i, each in forks.items() for _ in each)]
        if indexes:
            wanted = [*chosen.values(), *(row for each in forks.values() for row in each)]
            sampled = self._sampler.result(logits[indexes], wanted, masks)
            _leave_only(logits, list(chosen), sampled.tokens[: len(chosen)])
            logprobs = sampled.logprobs or [None] * len(wanted)
            found = zip(sampled.tokens.tolist(), logprobs, strict=True)
            self._keep_first_tokens(forks, islice(found, len(chosen), None))

    def _keep_first_tokens(
        self,
        forks: dict[int, list[SampleRow]],
        found: Iterable[tuple[int, RowLogprobs | None]],
    ) -> None:
        results = iter(found)
        for index, rows in forks.items():
            options = self._rows[index].options
            for fork, _ in zip(options.forks, rows, strict=False):
                options.first_tokens[fork.seq_id] = next(results)


def _ops_of(device: torch.device, vocab_size: int) -> SamplingOps:
    """On a device the kernels of Baton's own GPU runner, which are compiled at their first use:
    that for masks here, those that sample with `warm_up.py`."""
    if device.type == "cpu":
        return SamplingOps()
    from baton.model.gpu.triton.sampling import DEVICE_OPS

    nothing = np.zeros((1, -(-vocab_size // 32)), np.int32)
    DEVICE_OPS.forbid(torch.zeros(1, vocab_size, device=device), [0], nothing)
    return DEVICE_OPS


def has_penalty(params: SamplingParams) -> bool:
    """The tokens so far change the next one's probabilities."""
    return bool(params.presence_penalty or params.frequency_penalty) or (
        params.repetition_penalty != 1
    )


def _row_of(params: Any, prompt: list[int] | None, outputs: list[int]) -> _Row | None:
    """None for a sequence that takes the likeliest token as it is: that is vLLM's own way here."""
    options = (params.extra_args or {}).get(EXTRA_KEY)
    if options is None or prompt is None:
        return None
    sampling = options.sampling
    is_changed = sampling.temperature or sampling.min_tokens or sampling.logit_bias
    is_more = sampling.grammar is not None or options.forks or has_penalty(sampling)
    return _Row(options, prompt, outputs) if is_changed or is_more else None


def _masks_of(rows: dict[int, _Row]) -> tuple[dict[int, int], NDArray[np.int32] | None]:
    """The masks of the rows that a grammar limits, and the place of each row's among them."""
    masks = {i: row.options.mask for i, row in rows.items() if row.options.mask is not None}
    places = {index: place for place, index in enumerate(masks)}
    return places, np.stack(list(masks.values())) if masks else None


def _leave_only(logits: torch.Tensor, indexes: list[int], tokens: NDArray[np.int64]) -> None:
    rows = torch.tensor(indexes, dtype=torch.int64, device=logits.device)
    logits[rows] = -torch.inf
    logits[rows, torch.from_numpy(tokens).to(logits.device)] = 0.0
