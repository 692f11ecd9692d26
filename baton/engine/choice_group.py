"""Choices of one request that depend on one another: one prompt for all, or one beam search.

The leader computes the prompt. Without beam search the group ends then: the forks share its blocks
and are sequences like any other. In a beam search the leader keeps the prompt, beams that share its
blocks are computed in its place, and leader and forks take the results.
"""

from dataclasses import dataclass, field

from baton.engine.beam_search import BeamSearch
from baton.engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class ChoiceGroup:
    """`forks` are those not aborted, in the order of their choices; they hold nothing."""

    leader: Sequence
    forks: list[Sequence]
    # It was aborted before its forks had the prompt: it goes on for them alone.
    is_leader_aborted: bool = False
    search: BeamSearch | None = None
    # Live hypotheses, best first; they take all their steps together.
    beams: list[Sequence] = field(default_factory=list)
    # Likeliest next tokens (id, logprob) of the first beams, while a step is taken in.
    tops: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def has_credit(self) -> bool:
        """Whether a fork may emit."""
        return any(fork.credit > 0 for fork in self.forks)

    @property
    def awaits_grammar(self) -> bool:
        """Whether a fork's first token cannot be chosen yet."""
        return any(fork.awaits_grammar for fork in self.forks)

    @property
    def live(self) -> list[Sequence]:
        """What the next step of a search extends."""
        return self.beams or [self.leader]

    def leave(self, seq: Sequence) -> None:
        """The sequence depends on nobody any more."""
        if seq is not self.leader:
            self.forks.remove(seq)
        seq.group = None

    def dissolve(self) -> list[Sequence]:
        """Let everybody leave; returns the forks."""
        forks, self.forks = self.forks, []
        for seq in (self.leader, *forks):
            seq.group = None
        return forks
