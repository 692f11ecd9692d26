"""The requests of a benchmark: prompts of an exact number of tokens, partly shared, and outputs.

Prompts are whole words that are one token each, drawn by name: the same name gives the same text
everywhere, and different names share nothing but the system prompt.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MIN_WORD_CHARS = 3
_SPACE = "\u0120"  # how a byte-level vocabulary spells a leading space


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Tokens of one request: system prompt shared by all, text of its own, answer."""

    num_shared: int
    num_own: int
    num_output: int

    @property
    def num_prompt(self) -> int:
        return self.num_shared + self.num_own


# What the engine is compared on: long prompts, short prompts and answers alone.
KINDS = {
    "full": RequestSize(200, 825, 150),
    "prefill": RequestSize(200, 825, 1),
    "decode": RequestSize(0, 16, 100),
}
SMALL_KINDS = {
    "full": RequestSize(32, 64, 8),
    "prefill": RequestSize(32, 64, 1),
    "decode": RequestSize(0, 8, 8),
}


class WordList:
    """Words with a leading space and their token ids."""

    def __init__(self, ids_by_word: dict[str, int]) -> None:
        self._words = sorted(ids_by_word)
        self._ids = ids_by_word

    @classmethod
    def of_tokenizer(cls, path: Path) -> "WordList":
        """The plain words of a tokenizer.json that are one token in any sentence."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        found = {
            " " + spelling[1:]: token_id
            for spelling, token_id in tokenizer.get_vocab().items()
            if _is_plain_word(spelling)
        }
        encoded = tokenizer.encode_batch(list(found), add_special_tokens=False)
        pairs = zip(found.items(), encoded, strict=True)
        return cls({word: token for (word, token), text in pairs if text.ids == [token]})

    def token_ids(self, name: str, num_tokens: int) -> list[int]:
        return [self._ids[word] for word in self._draw(name, num_tokens)]

    def text(self, name: str, num_tokens: int) -> str:
        """The same words as `token_ids`, as text that encodes to them."""
        return "".join(self._draw(name, num_tokens))

    def prompt_ids(self, name: str, size: RequestSize) -> list[int]:
        """One request's prompt, `size.num_prompt` tokens."""
        return self.token_ids("system", size.num_shared) + self.token_ids(name, size.num_own)

    def messages(self, name: str, size: RequestSize) -> list[dict[str, str]]:
        """The same request as a conversation; the chat template adds some tokens."""
        system = {"role": "system", "content": self.text("system", size.num_shared)}
        user = {"role": "user", "content": self.text(name, size.num_own)}
        return [system, user] if size.num_shared else [user]

    def _draw(self, name: str, num_words: int) -> Sequence[str]:
        return random.Random(name).choices(self._words, k=num_words)


def _is_plain_word(spelling: str) -> bool:
    word = spelling[1:]
    is_plain = word.isascii() and word.isalpha() and len(word) >= _MIN_WORD_CHARS
    return spelling.startswith(_SPACE) and is_plain
