"""The tokens that one request has used so far: for its answer, its access line and its usage
record."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.openai.generation import Usage
from services.gateway.text.choice_text import ChoiceText


@dataclass(slots=True, eq=False)
class RequestUsage:
    """Counts over all choices and attempts of one request; all 0 when it arrives."""

    num_prompt_tokens: int = 0
    choices: Sequence[ChoiceText] = ()
    num_attempts: int = 0
    # Attempts that ended in more than a refusal for room: they may have computed blocks.
    num_failed_attempts: int = 0
    num_received: int = 0
    # A worker produced a token of it, or was at work on it when the client left. A prompt that
    # never came so far (refused, queued, lost with its worker) costs nothing.
    prompt_was_read: bool = False
    # Cached prompt tokens by choice; only of choices whose first token came with the first attempt.
    num_cached: dict[int, int] = field(default_factory=dict)

    @property
    def num_cached_tokens(self) -> int:
        """The prompt tokens that no worker computed for this request, for any of its choices."""
        return min(self.num_cached.values(), default=0)

    @property
    def num_output_tokens(self) -> int:
        return sum([choice.num_tokens for choice in self.choices])

    @property
    def num_wasted_tokens(self) -> int:
        """The tokens that workers produced and no choice has."""
        return self.num_received - self.num_output_tokens

    @property
    def finish_reasons(self) -> str:
        """The reason of each choice's end, in order; `insufficient_quota` for a spent budget."""
        return ",".join(
            "insufficient_quota" if choice.is_unpaid else choice.finish_reason or ""
            for choice in self.choices
        )

    def took_cached(self, num_cached: dict[int, int]) -> None:
        """Note the cached tokens of an attempt that just ended. Only the first attempt counts: what
        a later one finds in a cache may have been computed for this request."""
        if not self.num_cached and self.num_failed_attempts == 0:
            self.num_cached = num_cached

    def for_client(self) -> Usage:
        """The counts in the client's answer."""
        return Usage(self.num_prompt_tokens, self.num_cached_tokens, self.num_output_tokens)
