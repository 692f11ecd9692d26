"""One choice of an answer: its tokens, their text, where it stops, and what is counted.

A token counts as output up to and including the one that completed the stop; what arrives after
that is wasted. End tokens have no text.
"""

from services.gateway.detokenize import TokenTexts
from services.gateway.generation import Delta, FinishReason
from services.gateway.stop_strings import StopMatcher


class ChoiceText:
    """Follows one choice from its first token to its end."""

    def __init__(
        self, choice: int, texts: TokenTexts, stops: StopMatcher, silent_ids: frozenset[int]
    ) -> None:
        self.choice = choice
        self.num_tokens = 0
        self.num_wasted = 0
        self.finish_reason: FinishReason | None = None
        self._texts = texts
        self._stops = stops
        self._silent_ids = silent_ids

    @property
    def num_received(self) -> int:
        return self.num_tokens + self.num_wasted

    def take(self, token_ids: list[int]) -> str:
        """Take in tokens; returns the text that may be sent. May set `finish_reason` to stop."""
        if self.finish_reason is not None:
            self.num_wasted += len(token_ids)
            return ""
        pieces = []
        for position, token_id in enumerate(token_ids):
            self.num_tokens += 1
            text = "" if token_id in self._silent_ids else self._texts.add(token_id)
            if text:
                pieces.append(self._stops.feed(text))
            if self._stops.done:
                self.finish_reason = "stop"
                self.num_wasted += len(token_ids) - position - 1
                break
        return "".join(pieces)

    def finish(self, reason: FinishReason) -> Delta:
        """End the choice; the delta holds the text that was held back. At most once."""
        if self.finish_reason is not None:
            return Delta(self.choice, "", self.finish_reason)
        rest = self._texts.flush()
        text = self._stops.feed(rest) if rest else ""
        if self._stops.done:
            reason = "stop"
        else:
            text += self._stops.flush()
        self.finish_reason = reason
        return Delta(self.choice, text, reason)
