"""The served model, its room and its tokens per word; and kinds of users cut to that.

The server is asked once, at the start: `/v1/models`, and two answers of one token, whose `usage`
gives the number of tokens per word.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtest.workloads import MESSAGE_TOKENS, UserKind, Writer

# For a server that does not report its model's room: any model of today has this much.
DEFAULT_MODEL_LEN = 2048
_FEW_WORDS, _MANY_WORDS = 32, 160
# Left free when a word is not one token: then a text of so many words has more or less of them.
_SPARE_SHARE = 0.03
_CUT_FIELDS = ("system_tokens", "document_tokens", "query_tokens", "output_tokens")

# GET without a body, POST with one; the answer's JSON. Raises DeploymentError.
Fetch = Callable[[str, Mapping[str, Any] | None], Any]


class DeploymentError(Exception):
    """The server cannot be tested; the message says why."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One served model, as its clients see it."""

    model: str
    max_model_len: int
    tokens_per_word: float
    # What the chat template adds to a conversation of one message.
    template_tokens: int

    def room(self, num_messages: int) -> int:
        """Tokens for the contents of `num_messages` messages and an answer."""
        room = self.max_model_len - self.template_tokens - MESSAGE_TOKENS * num_messages
        return room if self.tokens_per_word == 1 else int(room * (1 - _SPARE_SHARE))


def inspect(fetch: Fetch, wished_model: str = "") -> Deployment:
    """Ask the server what it serves. Raises DeploymentError."""
    listed = {model["id"]: model for model in fetch("/v1/models", None)["data"]}
    if not listed or (wished_model and wished_model not in listed):
        names = ", ".join(listed) or "nothing"
        raise DeploymentError(f"the server serves {names}, not {wished_model or 'a model'}")
    name = wished_model or next(iter(listed))
    few, many = (_count(fetch, name, num_words) for num_words in (_FEW_WORDS, _MANY_WORDS))
    tokens_per_word = (many - few) / (_MANY_WORDS - _FEW_WORDS)
    if tokens_per_word <= 0:
        raise DeploymentError(f"usage reports {few} and {many} prompt tokens: it does not count")
    return Deployment(
        model=name,
        max_model_len=listed[name].get("max_model_len") or DEFAULT_MODEL_LEN,
        tokens_per_word=tokens_per_word,
        template_tokens=max(math.ceil(few - _FEW_WORDS * tokens_per_word), 0),
    )


def _count(fetch: Fetch, model: str, num_words: int) -> int:
    message = {"role": "user", "content": Writer().text("calibration", num_words)}
    answer = fetch("/v1/chat/completions", {"model": model, "messages": [message], "max_tokens": 1})
    return int(answer["usage"]["prompt_tokens"])


def fit(name: str, kind: UserKind, deployment: Deployment) -> tuple[UserKind, str]:
    """The kind with all sizes cut by one factor, so that its first turn fits; and a sentence about
    it, empty when nothing was cut. Growing conversations end by themselves where room ends."""
    room = deployment.room(num_messages=2)
    wanted = kind.first_turn_tokens
    if wanted <= room:
        return kind, ""
    factor = room / wanted
    cut = {
        field: max(int(getattr(kind, field) * factor), 1)
        for field in _CUT_FIELDS
        if getattr(kind, field)
    }
    sizes = ", ".join(f"{field} {getattr(kind, field)} -> {size}" for field, size in cut.items())
    note = f"{name}: {wanted:,} tokens do not fit into {deployment.max_model_len:,}; {sizes}"
    return msgspec.structs.replace(kind, **cut), note
