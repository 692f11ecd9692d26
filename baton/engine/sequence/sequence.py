"""One choice of one attempt of one request, as the engine sees it: tokens, blocks, progress.

Holds state and answers questions about it; block manager, scheduler and engine change it. A running
sequence has `num_tokens - num_computed_tokens` tokens to compute: 1 for a decode, more for a
prefill or a recomputation. All three are computed in the same way.

Choices of one request may depend on one another: one prompt for all, or one beam search. Then they
are a group, and its leader computes the prompt. Without beam search the group ends with that: the
forks share its blocks and are sequences like any other. In a beam search the leader keeps the
prompt, beams that share its blocks are computed instead of it, and leader and forks take results.
"""

import itertools
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from baton.engine.grammar.state import GrammarState
from baton.engine.protocol.batch import SampleRow
from baton.engine.protocol.messages import AddSequence, SamplingParams
from baton.engine.sequence.beam_search import BeamResult, BeamSearch
from baton.engine.sequence.pooled_sum import PooledSum
from baton.engine.sequence.prompt_lookup import PromptLookup
from baton.wire.limits import NUM_TOKENS_ALONE
from baton.wire.prefix_hash import split_hashes

_TOKEN = np.dtype("<u4")
_VERSIONS = itertools.count()


class BlockTable:
    """The KV blocks of one sequence, in the order of its tokens.

    Their ids are in an int32 buffer that grows by doubling, beside what is known of them.

    Entry 0 of `hash_chain` is the root, entry i + 1 the hash of block i, as far as they are known.
    """

    __slots__ = (
        "_block_us",
        "_ids",
        "_since_us",
        "hash_chain",
        "may_share_last",
        "num_blocks",
        "num_registered",
        "num_reported",
        "version",
    )

    def __init__(self, hash_chain: list[bytes]) -> None:
        self._ids = np.empty(16, np.int32)
        self.hash_chain = hash_chain
        self.num_blocks = 0
        # Another number whenever the ids change, and of no other table.
        self.version = next(_VERSIONS)
        # The first blocks, which have been entered into the prefix cache.
        self.num_registered = 0
        # The first blocks, which are final and were handed over, if that is wanted.
        self.num_reported = 0
        # Another table may refer to the last block too: before it is written, that must be checked.
        self.may_share_last = False
        # Blocks times microseconds that it held them, up to `_since_us`.
        self._block_us = 0
        self._since_us = 0

    def accrue(self, now_us: int) -> None:
        """Count the time for which the blocks were held; called before their number changes."""
        self._block_us += self.num_blocks * (now_us - self._since_us)
        self._since_us = now_us

    def take_block_us(self, now_us: int) -> int:
        """Blocks times microseconds that were held since the last call."""
        block_us = self._block_us + self.num_blocks * (now_us - self._since_us)
        self._block_us = 0
        self._since_us = now_us
        return block_us

    def extend(self, block_ids: list[int]) -> None:
        end = self.num_blocks + len(block_ids)
        if end > len(self._ids):
            self._ids = np.resize(self._ids, max(end, 2 * len(self._ids)))
        self._ids[self.num_blocks : end] = block_ids
        self.num_blocks = end
        self.version = next(_VERSIONS)

    def replace(self, index: int, block_id: int) -> None:
        self._ids[index] = block_id
        self.version = next(_VERSIONS)

    @property
    def ids(self) -> NDArray[np.int32]:
        """View of the ids; valid until the table changes."""
        return self._ids[: self.num_blocks]

    def take(self) -> list[int]:
        """Empty the table and return its ids. The hashes stay known."""
        block_ids: list[int] = self.ids.tolist()
        self.num_blocks = 0
        self.version = next(_VERSIONS)
        self.num_registered = 0
        self.may_share_last = False
        return block_ids


class SequenceState(Enum):
    """The stages of a sequence's life. Only RUNNING sequences are scheduled."""

    WAITING = auto()  # for blocks and slots in the batch; holds nothing
    PROMISED = auto()  # remote: cached blocks pinned, the others counted
    BOUND = auto()  # remote: has its blocks, which the front fills
    RUNNING = auto()
    HELD = auto()  # prefill: done, its blocks wait for Release
    FORKING = auto()  # waits for the prompt that its group's leader computes; holds nothing
    EMITTING = auto()  # its beam search is over: its tokens are known and wait for credit
    ENDED = auto()


class Sequence:
    """Mutable state of one sequence. `rank` orders by importance: smaller goes first.

    Its many fields stand side by side because each step reads most of them for each sequence; those
    of its blocks are in its table, those of its group in the group.
    """

    __slots__ = (
        "_tokens",
        "awaits_grammar",
        "credit",
        "end_ids",
        "grammar",
        "group",
        "is_plain",
        "last_token",
        "lookup",
        "max_num_tokens",
        "needs_history",
        "next_prompt_logprob",
        "num_awaited",
        "num_computed_tokens",
        "num_lost_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "pooled",
        "rank",
        "request",
        "result",
        "row",
        "state",
        "table",
        "was_started",
    )

    def __init__(self, request: AddSequence, arrival: int, root_hash: bytes) -> None:
        tokens = np.frombuffer(request.token_ids, _TOKEN)
        self._tokens = np.empty(len(tokens) + 32, _TOKEN)
        self._tokens[: len(tokens)] = tokens
        self.request = request
        self.rank = (-request.priority, not request.is_quiet, arrival)
        self.state = SequenceState.WAITING
        self.num_tokens = len(tokens)
        self.last_token = int(tokens[-1])
        self.num_prompt_tokens = len(tokens) - request.num_emitted
        self.num_computed_tokens = 0
        # Of its tokens, the last ones that steps which run will bring: counted, and not known yet.
        self.num_awaited = 0
        # A preemption took the KV of its first so many tokens, which had been computed.
        self.num_lost_tokens = 0
        # The prompt token whose logprobs are reported next; the first token has none.
        self.next_prompt_logprob = 1
        self.credit = request.credit
        # The tokens so far change the next one's probabilities.
        self.needs_history = _needs_history(request.sampling)
        # Its decodes bring nothing but one sampled token each, unless it is in a group.
        self.is_plain = _is_plain(request)
        # The row of logits of such a decode, kept from step to step.
        self.row: SampleRow | None = None
        # It may end behind one of these tokens, or when it has so many.
        self.end_ids: Collection[int] = ()
        self.max_num_tokens = 0
        self.table = BlockTable([root_hash, *split_hashes(request.block_hashes)])
        # Set when its output must match a grammar. It is parked while it awaits that.
        self.grammar: GrammarState | None = None
        self.awaits_grammar = False
        # What its next tokens are guessed from, once it decodes with speculation.
        self.lookup: PromptLookup | None = None
        # Set while choices of the same request depend on one another.
        self.group: SequenceGroup | None = None
        # What it emits when it is EMITTING.
        self.result: BeamResult | None = None
        # Set when its answer is a vector.
        self.pooled: PooledSum | None = None
        # Started was reported, or will never be: a remote sequence's prefill is elsewhere.
        self.was_started = request.kind == "remote"

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far, earlier attempts included: the index of the next one."""
        return self.num_tokens - self.num_awaited - self.num_prompt_tokens

    @property
    def runs_alone(self) -> bool:
        """A core died in a step with its request, and it has not proved harmless here."""
        request = self.request
        num_new = self.num_tokens - self.num_prompt_tokens - request.num_emitted
        return request.is_suspect and num_new < NUM_TOKENS_ALONE

    @property
    def will_decode(self) -> bool:
        """Its prompt is not all that is computed of it here."""
        request = self.request
        is_prompt_alone = request.kind == "prefill" or request.pools
        return not is_prompt_alone and request.sampling.max_tokens > 1

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Logprobs of prompt tokens are wanted that were not reported yet."""
        is_asked = self.request.sampling.num_prompt_logprobs is not None
        return is_asked and self.next_prompt_logprob < self.num_prompt_tokens

    @property
    def is_parked(self) -> bool:
        """It, or a fork that waits for its prompt, awaits a grammar; or none of them has credit."""
        if self.group is None:
            has_credit = self.num_tokens - self.num_prompt_tokens < self.credit
            return self.awaits_grammar or not has_credit
        return self.awaits_grammar or self.group.awaits_grammar or self.lacks_credit

    def is_plain_decode(self, block_size: int) -> bool:
        """It lacks only its last token, which has a slot, and it may emit: so do most in a step. A
        plain sequence has no grammar, and one that was preempted a moment ago has no slots."""
        num_tokens, table = self.num_tokens, self.table
        return (
            self.is_plain
            and self.group is None
            and num_tokens - self.num_computed_tokens == 1
            and num_tokens - self.num_prompt_tokens < self.credit
            and num_tokens <= table.num_blocks * block_size
            and not table.may_share_last
        )

    @property
    def lacks_credit(self) -> bool:
        """Neither it nor a fork that waits for its prompt may emit its next token."""
        if self.num_tokens - self.num_awaited - self.num_prompt_tokens < self.credit:
            return False
        return self.group is None or not self.group.has_credit

    @property
    def members(self) -> Collection["Sequence"]:
        """The sequences that are computed for it: its beams, once its prompt is; else itself."""
        if self.group is None or not self.group.beams or self.num_uncomputed_tokens:
            return (self,)
        return self.group.beams

    @property
    def num_batch_slots(self) -> int:
        """Slots in the batch that it takes, or will."""
        is_searching = self.request.kind != "prefill"
        return max(1, self.request.sampling.beam_width) if is_searching else 1

    @property
    def num_choices(self) -> int:
        """It, and the forks that wait for its prompt."""
        return 1 if self.group is None else 1 + len(self.group.forks)

    @property
    def is_beam(self) -> bool:
        """One hypothesis of a beam search."""
        return self.group is not None and self.group.leader is not self

    @property
    def can_be_preempted(self) -> bool:
        """A prefill sequence's blocks are being read by the front: they must stay."""
        return self.state is SequenceState.RUNNING and self.request.kind != "prefill"

    def tokens(self, start: int, end: int) -> NDArray[np.uint32]:
        """View of the tokens `[start, end)`; valid until the next append."""
        return self._tokens[start:end]

    def grant(self, index: int) -> None:
        """Let it be computed up to that output index, as far as there is one."""
        last = max(1, self.max_num_tokens - self.num_prompt_tokens)
        self.credit = min(max(self.credit, index), last)

    def take(self, token: int) -> int:
        """Take the first token that it awaits; returns how many there are before it."""
        place = self.num_tokens - self.num_awaited
        if place == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * place)
        self._tokens[place] = token
        self.last_token = token
        self.num_awaited -= 1
        return place

    def append(self, token: int) -> None:
        """Take a new output token; its KV is not computed yet."""
        self.num_tokens += 1
        self.num_awaited += 1
        self.take(token)

    def branch(self) -> "Sequence":
        """A copy with the same tokens and no blocks."""
        twin = copy(self)
        twin._tokens = self._tokens.copy()
        twin.row = None
        twin.table = BlockTable(self.table.hash_chain)
        return twin

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.seq_id}, {self.request.kind}, {self.state.name}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens, {self.table.num_blocks} blocks)"
        )


def _needs_history(sampling: SamplingParams) -> bool:
    has_penalty = sampling.presence_penalty or sampling.frequency_penalty
    return bool(has_penalty or sampling.repetition_penalty != 1)


def _is_plain(request: AddSequence) -> bool:
    sampling = request.sampling
    wants_logprobs = (sampling.num_logprobs, sampling.num_prompt_logprobs) != (None, None)
    is_limited = sampling.grammar is not None or _needs_history(sampling)
    is_edited = bool(sampling.logit_bias) or sampling.min_tokens > 0
    is_other_work = sampling.beam_width > 0 or request.pools or request.kind == "prefill"
    return not (wants_logprobs or is_limited or is_edited or is_other_work)


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """`forks` are those not aborted, in the order of their choices; they hold nothing."""

    leader: Sequence
    forks: list[Sequence]
    # It was aborted before its forks had the prompt: it goes on for them alone.
    is_leader_aborted: bool = False
    search: BeamSearch | None = None
    # Live hypotheses, best first; they take all their steps together.
    beams: list[Sequence] = field(default_factory=list)
    # Likeliest next tokens (id, logprob) of the first beams, while a step is committed.
    tops: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def has_credit(self) -> bool:
        """A fork may emit."""
        return any(fork.credit > 0 for fork in self.forks)

    @property
    def awaits_grammar(self) -> bool:
        """A fork's first token cannot be chosen yet."""
        return any(fork.awaits_grammar for fork in self.forks)

    @property
    def live(self) -> list[Sequence]:
        """The sequences that the next step of a search extends."""
        return self.beams or [self.leader]

    def leave(self, seq: Sequence) -> None:
        """Let the sequence go: it depends on no other one any more."""
        if seq is not self.leader:
            self.forks.remove(seq)
        seq.group = None

    def dissolve(self) -> list[Sequence]:
        """Let all sequences go; returns the forks."""
        forks, self.forks = self.forks, []
        for seq in (self.leader, *forks):
            seq.group = None
        return forks
