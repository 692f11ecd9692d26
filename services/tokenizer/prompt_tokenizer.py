"""Text -> ids with one model's tokenizer, with control ids only where the caller says so.

Two Rust tokenizers: the model's own, and a twin in which every control token has an unguessable
alias instead of its spelling. The twin finds control tokens only where aliases were written; to it
everything else is text, control spellings included. Text is split as by the model's own tokenizer:
both have the same normalizer, pre-tokenizer, merges and added tokens. Ids are the same in both.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from services.tokenizer.model_folder import UnusableModel
from services.tokenizer.render_messages import Rendered

# Private-use characters of plane 16; 8 of them are 120 random bits.
_FIRST_ALIAS_CHAR = 0x100000
_ALIAS_CHARS = 0x8000
_SECRET_CHARS = 8
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


# A text with more characters for each token that may be used is most likely too long.
_LONG_CHARS_PER_TOKEN = 8
_SLICE_CHARS = 32_768
# The most tokens that a cut adds: halves of a word, a prefix space, an unknown token on each side.
_TOKENS_PER_CUT = 8


class PromptTokenizer:
    """Encodes for one model; safe to use from several threads.

    `random_bytes(n)` makes the aliases unguessable. Raises UnusableModel when a control token of
    the tokenizer cannot be aliased.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        control_tokens: Sequence[str],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._own = tokenizer
        self._alias_of = _aliases(control_tokens, random_bytes)
        self._secret = next(iter(self._alias_of.values()), "")[:_SECRET_CHARS]
        self._twin = _aliased(tokenizer, self._alias_of)
        self._check_ids()
        self._first_chars = sorted({token[0] for token in control_tokens})
        # A control token that is matched after normalization has spellings that cannot be listed.
        self._always_twin = tokenizer.normalizer is not None and any(
            token.normalized and token.content in self._alias_of
            for token in tokenizer.get_added_tokens_decoder().values()
        )
        self.num_ids = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())

    def encode_rendered(self, rendered: Rendered, *, has_frame: bool = False) -> Encoding:
        """Encode the output of a chat template; only `control_spans` become control tokens.
        `has_frame`: the tokenizer adds its own (BOS) as well."""
        if not rendered.has_spelled_controls and not self._always_twin:
            return _encode(self._own, rendered.text, has_frame)
        text, spans = rendered.text, rendered.control_spans
        self._refuse_secret(text)
        pieces: list[str] = []
        end = 0
        for start, stop in zip(spans[::2], spans[1::2], strict=True):
            pieces += (text[end:start], self._alias_of[text[start:stop]])
            end = stop
        return _encode(self._twin, "".join([*pieces, text[end:]]), has_frame)

    def encode_text(self, text: str, *, has_frame: bool = True) -> Encoding:
        """Encode plain text without control tokens but for the tokenizer's own frame (BOS)."""
        if not self._always_twin and not any(char in text for char in self._first_chars):
            return _encode(self._own, text, has_frame)
        self._refuse_secret(text)
        return _encode(self._twin, text, has_frame)

    def is_far_longer(self, text: str, max_tokens: int) -> bool:
        """True when a long text surely has more than `max_tokens` tokens.

        Encodes slices of the text, and no more of them than it takes to be sure. Slices have other
        tokens at their ends than the whole text, so only a text with twice as many counts.
        """
        if len(text) <= _LONG_CHARS_PER_TOKEN * max_tokens:
            return False
        num_tokens, limit = 0, 2 * max_tokens
        for piece in _slices(text):
            num_tokens += len(_encode(self._own, piece, False))
            limit += _TOKENS_PER_CUT
            if num_tokens > limit:
                return True
        return False

    def added_tokens(self) -> list[tuple[str, bool]]:
        """Spelling and special flag of all added tokens, in the order of their ids."""
        return added_tokens(self._own)

    def to_json(self) -> str:
        """The model's tokenizer as tokenizer.json."""
        return self._own.to_str()

    def token_id(self, token: str) -> int | None:
        return self._own.token_to_id(token)

    def _refuse_secret(self, text: str) -> None:
        # Guessing the secret is as likely as guessing a key; the check costs nothing.
        assert not self._secret or self._secret not in text, "the text holds an alias"

    def _check_ids(self) -> None:
        for token_id, token in self._own.get_added_tokens_decoder().items():
            alias = self._alias_of.get(token.content, token.content)
            if self._twin.token_to_id(alias) != token_id:
                raise UnusableModel(f"token {token.content!r} cannot be aliased")


def added_tokens(tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """Spelling and special flag of all added tokens, in the order of their ids.

    Byte pieces (<0x0A>) are left out even where they were added: text is made of them.
    """
    tokens = sorted(tokenizer.get_added_tokens_decoder().items())
    return [
        (token.content, token.special)
        for _, token in tokens
        if not _BYTE_PIECE.fullmatch(token.content)
    ]


def _slices(text: str) -> Iterator[str]:
    """Parts of at most _SLICE_CHARS that begin with a space, where there is one to cut at."""
    start = 0
    while start < len(text):
        end = start + _SLICE_CHARS
        if end < len(text):
            space = text.rfind(" ", start + 1, end)
            end = space if space > 0 else end
        yield text[start:end]
        start = end


def _encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> Encoding:
    # encode() holds the GIL for as long as it takes; the batch calls release it.
    return tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]


def _aliases(tokens: Sequence[str], random_bytes: Callable[[int], bytes]) -> dict[str, str]:
    numbers = random_bytes(2 * _SECRET_CHARS)
    secret = "".join(
        _alias_char(int.from_bytes(numbers[i : i + 2], "little")) for i in range(0, len(numbers), 2)
    )
    # All of equal length, so that none is the beginning of another.
    return {
        token: secret + _alias_char(index // _ALIAS_CHARS) + _alias_char(index)
        for index, token in enumerate(tokens)
    }


def _alias_char(number: int) -> str:
    return chr(_FIRST_ALIAS_CHAR + number % _ALIAS_CHARS)


def _aliased(tokenizer: Tokenizer, alias_of: dict[str, str]) -> Tokenizer:
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:
        alias = alias_of.get(token["content"])
        if alias is None:
            continue
        token["content"] = alias
        if tokenizer.normalizer and alias not in tokenizer.normalizer.normalize_str(alias):
            token["normalized"] = False
    _rename_in_model(description["model"], alias_of)
    return Tokenizer.from_buffer(json.dumps(description).encode())


def _rename_in_model(model: dict[str, Any], alias_of: dict[str, str]) -> None:
    """A control token that stands in the vocabulary must not be reachable by its spelling."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {alias_of.get(piece, piece): i for piece, i in vocabulary.items()}
    else:
        model["vocab"] = [[alias_of.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("unk_token") in alias_of:
        model["unk_token"] = alias_of[model["unk_token"]]
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, alias_of)]


def _touches(merge: str | list[str], alias_of: dict[str, str]) -> bool:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first in alias_of or second in alias_of or first + second in alias_of
