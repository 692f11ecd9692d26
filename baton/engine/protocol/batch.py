"""One step's work as flat arrays, the only thing that a runner sees, and its result. No torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.messages import SamplingParams


class TokenHistory(NamedTuple):
    """The tokens before the one to sample: prompt and output in `tokens`, and then `draft`.

    From step to step `tokens` of one `seq_id` only grows, so that a runner can count as it grows.
    """

    seq_id: int
    tokens: NDArray[np.uint32]
    num_prompt_tokens: int
    draft: tuple[int, ...] = ()


@dataclass(slots=True)
class SampleRow:
    """One use of the logits after flat query token `token_row`: to sample, or for logprobs."""

    token_row: int
    params: SamplingParams
    choice: int
    # Index of the new token among the output tokens of its choice: the noise counter.
    output_index: int
    # Set when the tokens so far change the next one's probabilities; a view that is valid during
    # the step.
    history: TokenHistory | None = None
    # Likeliest tokens whose logprobs are wanted besides the row's own; None = no logprobs.
    num_logprobs: int | None = None
    # With it nothing is sampled: the logprobs of this token are wanted.
    forced_token: int | None = None
    # The row of `StepBatch.masks` that limits this one; None = every token is allowed.
    mask_row: int | None = None


class PooledSpan(NamedTuple):
    """Flat query tokens `[first_row, end_row)` of one sequence, whose states are added up."""

    first_row: int
    end_row: int


class TokenMasks(Protocol):
    """The tokens that structured output allows, worked out while the model runs."""

    def start(self) -> None:
        """Begin; called before the forward pass."""

    def result(self) -> NDArray[np.int32]:
        """`[num_masks, ceil(vocab_size / 32)]`, bit = allowed; valid until the next step."""


class LayerMarks(NamedTuple):
    """Numbers of layers after which somebody waits for the KV of the step."""

    # Ascending.
    marks: tuple[int, ...]
    # Called with each of them, in order, once the step's KV is in the cache in so many layers, the
    # first ones. A runner that does not know need not call.
    reached: Callable[[int], None]


@dataclass(slots=True)
class StepBatch:
    """Sequences of a step, flattened; S sequences, T tokens, tables padded to B blocks.

    Decodes and prefill chunks are alike: sequence s computes query tokens
    `query_starts[s]:query_starts[s + 1]`, whose positions end at `context_lens[s] - 1`. A record,
    with a field for each thing that a runner must know.
    """

    step: int
    token_ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [T]
    query_starts: NDArray[np.int32]  # [S + 1]
    context_lens: NDArray[np.int32]  # [S], tokens in the cache after this step
    block_tables: NDArray[np.int32]  # [S, B], padded with -1
    seq_ids: list[int]  # [S], for diagnosis only
    sample_rows: list[SampleRow]
    # (source, target): whole blocks to copy, in order, before anything is computed.
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    masks: TokenMasks | None = None
    # Of the first tokens, the sample rows of the batch that was launched before whose tokens they
    # are, while only the runner knows them; -1 = `token_ids` has it, as it has all the others.
    tokens_from: NDArray[np.int32] | None = None
    pooled_spans: list[PooledSpan] = field(default_factory=list)
    # Only for a runner whose cache is the shared pool.
    layer_marks: LayerMarks | None = None


class RowLogprobs(NamedTuple):
    """Log probabilities under the raw logits: of the row's token, and of the likeliest ones."""

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    # Of a forced token: how many tokens are as likely or likelier, itself among them.
    rank: int = 0


@dataclass(slots=True)
class StepResult:
    """The results of a batch's R sample rows and P pooled spans, in their order."""

    tokens: NDArray[np.int64]  # [R], the forced token where there was one
    # [R], or empty: no row asked for them.
    logprobs: list[RowLogprobs | None] = field(default_factory=list)
    # [P, width], one row for each of the batch's pooled spans; None: it has none.
    pooled_sums: NDArray[np.float32] | None = None
