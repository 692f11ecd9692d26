"""Kinds of users: the length of their prompts, shared prefixes, reading speed, leaving.

A kind is data. Sizes are in tokens and made of words that are one token each in most
vocabularies; how many tokens a word really has is measured at the start (`deployment`). Knows
nothing of HTTP or Locust.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Message = dict[str, str]

# An upper estimate of the tokens that a chat template adds for one message.
MESSAGE_TOKENS = 8
_MAX_NAMED_TEXTS = 256
# Plain words, each one token with its leading space in the demo model's vocabulary.
_WORDS = Path(__file__).with_name("words.txt").read_text().split()


class UserKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of user, with a field for each option that a scenario's file may set.

    Sizes are in tokens; `weight` 0 leaves the kind out.
    """

    weight: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    # The same for every user of the kind: a prefix that a cache can share.
    system_tokens: Tokens = 0
    # In a conversation's first message: one of `num_documents` shared documents, or its own (0).
    document_tokens: Tokens = 0
    num_documents: Annotated[int, msgspec.Meta(ge=0, le=_MAX_NAMED_TEXTS)] = 0
    # The question of each turn, or a tool's result that comes back to an agent.
    query_tokens: Tokens = 25
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    num_turns: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    think_s: tuple[Seconds, Seconds] = (0.0, 0.0)
    # Leaves after a random number of pieces of text up to this one; none: stays to the end.
    leave_after_pieces: Tokens | None = None
    # The speed at which it reads its answers; 0: at once.
    read_bytes_per_s: Tokens = 0
    # The environment variable with this kind's API key: a key has a priority, and limits.
    api_key_env: str = "API_KEY"
    # Limits of an answer that counts as goodput; 0: the scenario's, -1: no limit.
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0

    @property
    def first_turn_tokens(self) -> int:
        """Prompt and answer of a conversation's first turn, without the chat template."""
        prompt = self.system_tokens + self.document_tokens + self.query_tokens
        return prompt + self.output_tokens


KINDS: Mapping[str, UserKind] = {
    "chat": UserKind(
        system_tokens=100, query_tokens=30, output_tokens=60, num_turns=6, think_s=(1, 4)
    ),
    "rag": UserKind(
        system_tokens=60,
        document_tokens=1200,
        num_documents=12,
        query_tokens=25,
        output_tokens=80,
        think_s=(1, 3),
    ),
    "agent": UserKind(
        system_tokens=200, query_tokens=120, output_tokens=50, num_turns=40, think_s=(0.1, 0.3)
    ),
    "long_document": UserKind(
        document_tokens=8000, query_tokens=20, output_tokens=120, think_s=(2, 5)
    ),
    "interactive": UserKind(
        system_tokens=50,
        query_tokens=30,
        output_tokens=40,
        think_s=(0.5, 2),
        api_key_env="INTERACTIVE_API_KEY",
    ),
    "batch": UserKind(
        document_tokens=600,
        output_tokens=200,
        api_key_env="BATCH_API_KEY",
        ttft_ms=-1,
        tpot_ms=-1,
    ),
    "slow_reader": UserKind(
        query_tokens=40,
        output_tokens=300,
        think_s=(1, 2),
        read_bytes_per_s=4000,
        ttft_ms=-1,
        tpot_ms=-1,
    ),
    "leaver": UserKind(
        document_tokens=150, output_tokens=200, think_s=(0.5, 2), leave_after_pieces=40
    ),
    # The reference workload: 50 agents, 1,025 tokens in, 150 out.
    "reference": UserKind(
        system_tokens=200, document_tokens=800, query_tokens=25, output_tokens=150
    ),
}


class Writer:
    """Text of a wished number of tokens. The same name gives the same text everywhere in a run;
    another run has another `salt`, so that it finds nothing of this one in prefix caches."""

    def __init__(self, tokens_per_word: float = 1.0, salt: str = "") -> None:
        self._tokens_per_word = tokens_per_word
        self._salt = salt

    def text(self, name: str, num_tokens: int) -> str:
        num_words = round(num_tokens / self._tokens_per_word)
        return " ".join(random.Random(f"{self._salt}/{name}").choices(_WORDS, k=max(num_words, 0)))


class Conversation:
    """The messages of one user, turn by turn, with its history. It ends after its turns or without
    room."""

    def __init__(
        self, name: str, kind: UserKind, writer: Writer, rng: random.Random, max_model_len: int
    ) -> None:
        self._name = name
        self._kind = kind
        self._writer = writer
        self._rng = rng
        self._max_model_len = max_model_len
        self._own = f"{rng.getrandbits(64):x}"
        self._messages: list[Message] = []
        self._num_turns = 0
        self._num_tokens = 0

    def next_turn(self) -> list[Message]:
        """The messages to send: the history and a new one of the user."""
        kind = self._kind
        parts = []
        if not self._messages:
            if kind.system_tokens:
                system = self._writer.text(f"{self._name}/system", kind.system_tokens)
                self._messages.append({"role": "system", "content": system})
            parts.append(self._writer.text(self._document(), kind.document_tokens))
        parts.append(self._writer.text(f"{self._own}/{self._num_turns}", kind.query_tokens))
        self._say("user", " ".join(part for part in parts if part))
        self._num_turns += 1
        return self._messages

    def answered(self, text: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Add an answer to the history; the server's counts give its length."""
        self._say("assistant", text)
        self._num_tokens = num_prompt_tokens + num_output_tokens

    @property
    def is_over(self) -> bool:
        kind = self._kind
        next_turn = kind.query_tokens + kind.output_tokens + 2 * MESSAGE_TOKENS
        has_room = self._num_tokens + next_turn <= self._max_model_len
        return self._num_turns >= kind.num_turns or not has_room

    def _document(self) -> str:
        num_documents = self._kind.num_documents
        if not num_documents:
            return f"{self._own}/document"
        # Few documents are popular, as in real retrieval.
        weights = [1 / (number + 1) for number in range(num_documents)]
        (number,) = self._rng.choices(range(num_documents), weights)
        return f"{self._name}/document/{number}"

    def _say(self, role: Literal["user", "assistant"], content: str) -> None:
        self._messages.append({"role": role, "content": content})
