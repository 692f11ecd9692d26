"""The plan of one step: which sequences it computes, and how many tokens of each."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from baton.engine.protocol.batch import SampleRow
from baton.engine.sequence.sequence import Sequence

# Prompt tokens that one step computes of sequences that want logprobs of their prompt: each needs a
# row of logits as wide as the vocabulary.
MAX_PROMPT_LOGPROB_TOKENS = 128


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's part of a step: its next tokens, and guesses of those that follow them."""

    seq: Sequence
    num_new_tokens: int
    # The step computes the sequence to its last token: another one follows.
    completes: bool
    draft: tuple[int, ...] = ()
    # Further choices that go on from the same logits: the step completes the prompt they wait for.
    forks: SequenceOf[Sequence] = ()
    # The uses of the logits; set when the batch is built.
    rows: SequenceOf[SampleRow] = ()
    # Some of its tokens go into a vector; set when the batch is built.
    is_pooled: bool = False

    @property
    def num_query_tokens(self) -> int:
        return self.num_new_tokens + len(self.draft)


@dataclass(slots=True)
class StepPlan:
    """One step: how many tokens of which sequence. A decode lacks nothing but its last token.

    Most sequences of most steps are in `plain`: decodes that bring one sampled token and nothing
    else. They come first in the batch; the others follow.
    """

    max_tokens: int
    max_seqs: int
    num_prompt_logprobs_left: int = MAX_PROMPT_LOGPROB_TOKENS
    plain: list[Sequence] = field(default_factory=list)
    sequences: list[ScheduledSequence] = field(default_factory=list)
    # The ids of all, in the order of the batch; set when the batch is built.
    seq_ids: list[int] = field(default_factory=list)
    # Places in the batch of those that lack more than their last token; and how many of the
    # tokens had been computed before a preemption.
    prefills: dict[int, int] = field(default_factory=dict)
    started: list[Sequence] = field(default_factory=list)
    num_prefill_tokens: int = 0
    num_draft_tokens: int = 0
    num_preemptions: int = 0
    # The step computes one token of no sequence, to show that it can.
    is_probe: bool = False

    @property
    def num_decodes(self) -> int:
        return len(self.plain) + len(self.sequences) - len(self.prefills)

    @property
    def num_tokens_left(self) -> int:
        return self.max_tokens - self.num_query_tokens

    @property
    def num_seqs_left(self) -> int:
        return self.max_seqs - len(self.plain) - len(self.sequences)

    @property
    def is_full(self) -> bool:
        return self.num_tokens_left == 0 or self.num_seqs_left == 0

    def is_closed_to(self, seq: Sequence) -> bool:
        """A quiet tenant's prompt shares a step without decodes with no other tenant's."""
        if self.num_decodes or seq.request.is_quiet:
            return False
        return any(scheduled.seq.request.is_quiet for scheduled in self.sequences)

    @property
    def is_empty(self) -> bool:
        """Nothing is to be run."""
        return not (self.plain or self.sequences or self.is_probe)

    @property
    def is_plain(self) -> bool:
        """It needs no more than the tokens that plain decodes bring."""
        return bool(self.plain) and not self.sequences

    @property
    def has_work(self) -> bool:
        """Another step could bring something without a new command."""
        return bool(self.plain or self.sequences or self.num_preemptions)

    @property
    def all(self) -> list[Sequence]:
        """All sequences of the step, in the order of the batch."""
        return [*self.plain, *(scheduled.seq for scheduled in self.sequences)]

    @property
    def num_query_tokens(self) -> int:
        """Tokens of sequences that the step computes, drafts included."""
        return self.num_decodes + self.num_prefill_tokens + self.num_draft_tokens

    def token_counts(self) -> list[int]:
        """The tokens of each sequence in the batch, drafts included."""
        counts = [1] * len(self.plain)
        counts += [scheduled.num_query_tokens for scheduled in self.sequences]
        return counts

    def limit_prefill(self, num_tokens: int) -> None:
        """Let the sequences that are added from now on have at most this many tokens in all."""
        self.max_tokens = min(self.max_tokens, self.num_query_tokens + num_tokens)

    def add(self, seq: Sequence, num_tokens: int) -> None:
        num_uncomputed = seq.num_uncomputed_tokens
        self.sequences.append(ScheduledSequence(seq, num_tokens, num_tokens == num_uncomputed))
        if num_uncomputed > 1:
            self.num_prefill_tokens += num_tokens
            num_lost = seq.num_lost_tokens - seq.num_computed_tokens
            place = len(self.plain) + len(self.sequences) - 1
            self.prefills[place] = max(0, min(num_lost, num_tokens))

    def add_draft(self, scheduled: ScheduledSequence, draft: tuple[int, ...]) -> None:
        """Guess the tokens that follow those of a scheduled sequence."""
        scheduled.draft = draft
        self.num_draft_tokens += len(draft)

    def await_tokens(self) -> None:
        """The step computes the last token of each plain decode now, and will bring the next."""
        for seq in self.plain:
            seq.num_computed_tokens += 1
            seq.num_tokens += 1
            seq.num_awaited += 1

    def take_plain(self) -> None:
        """Move the plain decodes to the others, so that they can have drafts."""
        decodes = [ScheduledSequence(seq, 1, completes=True) for seq in self.plain]
        self.plain = []
        self.sequences = decodes + self.sequences
