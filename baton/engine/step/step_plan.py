"""The plan of one step: which sequences it computes, and how many tokens of each."""

from dataclasses import dataclass, field

from baton.engine.protocol.batch import SampleRow
from baton.engine.sequence.sequence import Sequence

# Prompt tokens that one step computes of sequences that want logprobs of their prompt: each needs a
# row of logits as wide as the vocabulary.
MAX_JUDGED_TOKENS = 128


@dataclass(slots=True)
class Work:
    """One sequence's part of a step: its next tokens, and guesses of those that follow them."""

    seq: Sequence
    num_new_tokens: int
    draft: tuple[int, ...] = ()
    # Further choices that go on from the same logits: the step completes the prompt they wait for.
    forks: list[Sequence] = field(default_factory=list)
    # What the step asks of the logits; set when the batch is built.
    rows: list[SampleRow] = field(default_factory=list)

    @property
    def num_query_tokens(self) -> int:
        return self.num_new_tokens + len(self.draft)

    @property
    def completes(self) -> bool:
        """The step computes the sequence to its last token: another one follows."""
        return self.num_new_tokens == self.seq.num_uncomputed_tokens


@dataclass(slots=True)
class StepPlan:
    """One step: how many tokens of which sequence."""

    num_tokens_left: int
    num_seqs_left: int
    num_judged_tokens_left: int = MAX_JUDGED_TOKENS
    works: list[Work] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    num_preemptions: int = 0

    @property
    def is_full(self) -> bool:
        return self.num_tokens_left == 0 or self.num_seqs_left == 0

    def limit_prefill(self, num_tokens: int) -> None:
        """What comes from now on may have this many tokens in all."""
        self.num_tokens_left = min(self.num_tokens_left, num_tokens)

    def add(self, seq: Sequence, num_tokens: int) -> None:
        self.works.append(Work(seq, num_tokens))
        self.num_tokens_left -= num_tokens
        self.num_seqs_left -= 1
