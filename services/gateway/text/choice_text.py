"""One choice of an answer: its tokens, their text, its end, and the counts of its tokens.

Tokens count as output up to and including the one that completed the stop; those that arrive after
it are wasted. End tokens have no text.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import Delta, FinishReason, TokenLogprob
from services.gateway.text.detokenize import TokenTexts
from services.gateway.text.logprob_trail import LogprobTrail
from services.gateway.text.stop_strings import StopMatcher


class ReasoningReader(Protocol):
    """Tells the reasoning of one choice from the answer."""

    num_tokens: int
    # The last token belongs to the answer, as far as is known.
    is_answer: bool

    def feed(self, text: str) -> str:
        """Take the text of the next token; returns the text of the answer that is complete."""

    def finish(self, text: str) -> str:
        """Take the last text, which is not a token; returns the rest of the answer."""

    def taken(self) -> str:
        """The reasoning since the last call."""


class ChoiceText:
    """Follows one choice from its first token to its end.

    `stops` looks for stop strings and `trail` keeps logprobs where they are wanted, both of the
    answer and not of its reasoning, which `reasoning` tells apart where there is any. `is_mute`:
    only the prompt was wanted, so that the first token ends the choice and is not part of it. Ids,
    text and logprobs are cut at the same token, hence the many attributes.
    """

    def __init__(
        self,
        choice: int,
        texts: TokenTexts,
        stops: StopMatcher | None,
        silent_ids: frozenset[int],
        trail: LogprobTrail | None = None,
        reasoning: ReasoningReader | None = None,
    ) -> None:
        self.choice = choice
        self.num_received = 0
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.is_mute = False
        self.hides_reasoning = False
        # The key's budget ended it, which a client reads as a length.
        self.is_unpaid = False
        # A later attempt begins behind these; bounded by the model's context length.
        self.token_ids = array("I")
        self._texts = texts
        self._stops = stops
        self._silent_ids = silent_ids
        self._trail = trail
        self._reasoning = reasoning
        # The characters of all tokens so far, held back ones included, and those that were sent.
        self._num_chars = 0
        self._num_sent_chars = 0

    def take(
        self, token_ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprobs] = ()
    ) -> Delta | None:
        """Take in tokens; returns the delta that may be sent, if any. May end the choice with
        stop."""
        self.num_received += len(token_ids)
        if self.finish_reason is not None:
            return None
        if self.is_mute:
            self.finish_reason = FinishReason.LENGTH
            return Delta(self.choice, "", FinishReason.LENGTH)
        self.token_ids.extend(token_ids)
        by_index = {one.index: one for one in logprobs} if logprobs else {}
        pieces = []
        for token_id in token_ids:
            start = self._num_chars
            pieces.append(self._text_of(token_id))
            if self._trail is not None and self.num_tokens in by_index:
                self._note_logprobs(start, token_id, by_index[self.num_tokens])
            self.num_tokens += 1
            if self._stops is not None and self._stops.done:
                self.finish_reason = FinishReason.STOP
                break
        return self._delta("".join(pieces))

    @property
    def num_reasoning_tokens(self) -> int:
        """The tokens of its reasoning, which are part of `num_tokens`."""
        return 0 if self._reasoning is None else self._reasoning.num_tokens

    def finish(self, reason: FinishReason) -> Delta:
        """End the choice; the delta has the text that was held back. At most once.

        `reason` stop: the last token was an end token, or a stop token of the request.
        """
        assert self.finish_reason is None, "a choice ends once"
        rest = self._texts.flush()
        if self._reasoning is not None:
            rest = self._reasoning.finish(rest)
        self._num_chars += len(rest)
        text = self._sendable(rest)
        if self._trail is not None and reason == FinishReason.STOP:
            self._trail.end()
        if self._stops is not None and self._stops.done:
            self.finish_reason = FinishReason.STOP
            return self._delta(text) or Delta(self.choice, "", FinishReason.STOP)
        if self._stops is not None:
            text += self._stops.flush()
        self.finish_reason = reason
        logprobs = () if self._trail is None else self._trail.release_all()
        return Delta(self.choice, text, reason, logprobs, reasoning=self._reasoning_text())

    def _note_logprobs(self, start: int, token_id: int, logprobs: worker_pb2.TokenLogprobs) -> None:
        """Keep a token's logprobs if it belongs to the answer."""
        assert self._trail is not None
        if self._reasoning is None or self._reasoning.is_answer:
            self._trail.add(start, token_id, logprobs)
        elif not self._num_chars:
            # The tokens before it belong to the mark of the reasoning.
            self._trail.release_all()

    def _reasoning_text(self) -> str:
        if self._reasoning is None or self.hides_reasoning:
            return ""
        return self._reasoning.taken()

    def _text_of(self, token_id: int) -> str:
        text = "" if token_id in self._silent_ids else self._texts.add(token_id)
        if self._reasoning is not None:
            text = self._reasoning.feed(text)
        self._num_chars += len(text)
        return self._sendable(text)

    def _sendable(self, text: str) -> str:
        """The text that may be sent after new text: all of it where no stop string could begin."""
        return text if self._stops is None or not text else self._stops.feed(text)

    def _delta(self, text: str) -> Delta | None:
        self._num_sent_chars += len(text)
        reasoning = self._reasoning_text()
        if not text and not reasoning and self.finish_reason is None:
            return None
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._trail is not None:
            logprobs = self._trail.release(self._num_sent_chars)
        return Delta(self.choice, text, self.finish_reason, logprobs, reasoning=reasoning)
