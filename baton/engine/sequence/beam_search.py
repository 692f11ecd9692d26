"""The arithmetic of one beam search: which hypotheses live on, which are results, when to stop.

A hypothesis scores the sum of its tokens' logprobs; a result's score is divided by its length to
the power `length_penalty`. Equal scores go to the better beam, then to the lower token id. Knows no
sequences and no blocks. The rules, stopping included, are those of transformers' `generate`
(`_beam_search` in generation/utils.py, 5.x).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from baton.engine.protocol.messages import SamplingParams
from baton.engine.protocol.reasons import StopReason


@dataclass(frozen=True, slots=True)
class BeamResult:
    """One answer; `score` orders them."""

    score: float
    tokens: list[int]
    reason: StopReason


class Survivor(NamedTuple):
    """A live hypothesis: that of beam `parent`, and then `token`."""

    parent: int
    token: int


class BeamSearch:
    """Starts with one beam, the prompt. `max_tokens` is the longest result."""

    def __init__(self, params: SamplingParams, end_ids: Collection[int], max_tokens: int) -> None:
        self._params = params
        self._end_ids = frozenset(end_ids)
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._scores = [0.0]
        self._results: list[BeamResult] = []
        self.is_done = False

    @property
    def results(self) -> list[BeamResult]:
        """The best so far, best first; at the end as many as there are beams."""
        return self._results

    def advance(
        self, tops: list[list[tuple[int, float]]], tokens_of: Callable[[int], list[int]]
    ) -> list[Survivor]:
        """Take the likeliest next tokens `(id, logprob)` of each beam; the new beams, best first.

        Each beam needs `num_top(params, end_ids)` of them. `tokens_of` gives a beam's output.
        """
        self._num_tokens += 1
        width = self._params.beam_width
        survivors: list[Survivor] = []
        scores: list[float] = []
        for rank, (score, beam, token) in enumerate(self._candidates(tops)):
            is_end = token in self._end_ids
            if is_end or self._num_tokens == self._max_tokens:
                if rank < width:
                    reason: StopReason = "stop" if is_end else "length"
                    self._take_result(score, [*tokens_of(beam), token], reason)
            elif len(survivors) < width:
                survivors.append(Survivor(beam, token))
                scores.append(score)
        self._scores = scores
        self.is_done = not survivors or not self._can_improve()
        return survivors

    def _candidates(self, tops: list[list[tuple[int, float]]]) -> list[tuple[float, int, int]]:
        """(score, beam, token), best first."""
        is_early = self._num_tokens <= self._params.min_tokens
        candidates = [
            (score + logprob, beam, token)
            for beam, (score, top) in enumerate(zip(self._scores, tops, strict=True))
            for token, logprob in top
            if not (is_early and token in self._end_ids)
        ]
        return sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))

    def _take_result(self, score: float, tokens: list[int], reason: StopReason) -> None:
        normalized: float = score / len(tokens) ** self._params.length_penalty
        self._results.append(BeamResult(normalized, tokens, reason))
        self._results.sort(key=lambda result: -result.score)
        del self._results[self._params.beam_width :]

    def _can_improve(self) -> bool:
        """A live beam may still become a result."""
        params = self._params
        if len(self._results) < params.beam_width:
            return True
        if params.early_stopping == "full":
            return False
        length = self._num_tokens
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self._max_tokens
        best: float = self._scores[0] / length**params.length_penalty
        return best > self._results[-1].score


def num_top(params: SamplingParams, end_ids: Collection[int]) -> int:
    """Likeliest next tokens of each beam that a step needs: all beams may live on in one."""
    return params.beam_width + len(end_ids)
