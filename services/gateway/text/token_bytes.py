"""The bytes that each token id stands for. They need not be whole characters.

They are read off the vocabulary as the tokenizer's own decoder would do it: byte-level alphabets
(GPT-2's, Llama 3, Qwen) and SentencePiece with byte fallback. Other decoders decode each token
alone.
"""

import re
from typing import Any

import msgspec
from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Decoders that change nothing within a token.
_NEUTRAL = {"Fuse", "Strip"}


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    """The parts of tokenizer.json that are read here."""

    decoder: dict[str, Any] | None = None
    added_tokens: list[_AddedToken] = []


class TokenBytes:
    """The token bytes of one model. `tokenizer_json` is the file that `tokenizer` was made of."""

    def __init__(self, tokenizer: Tokenizer, tokenizer_json: bytes) -> None:
        file = msgspec.json.decode(tokenizer_json, type=_TokenizerFile)
        steps = _steps(file.decoder)
        kinds = {step["type"] for step in steps}
        self._tokenizer = tokenizer
        # Bounded by the vocabulary.
        self._known = {token.id: token.content.encode() for token in file.added_tokens}
        # Tokens that stand for no text.
        self.special_ids = frozenset(token.id for token in file.added_tokens if token.special)
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._replaced = [pair for step in steps for pair in _replacements(step)]
        # A text is the bytes of its tokens, one after the other.
        self.are_joined = kinds == {"ByteLevel"}
        known = {"ByteLevel", "ByteFallback", "Replace", "Metaspace"} | _NEUTRAL
        self._is_understood = bool(kinds) and kinds <= known

    def __call__(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an id without a token. Those of a special token are its
        name."""
        known = self._known.get(token_id)
        if known is None:
            token: str | None = self._tokenizer.id_to_token(token_id)
            if token is None:
                return b""
            known = self._known[token_id] = self._bytes_of(token_id, token)
        return known

    def name(self, token_id: int) -> str:
        """The token as the vocabulary writes it; empty for an id without a token."""
        return self._tokenizer.id_to_token(token_id) or ""

    def longest(self) -> int:
        """A bound on the bytes of one token; 0 when there is none, because the tokenizer may take a
        long text that it does not know for one token."""
        if not (self._is_byte_level or self._has_byte_tokens):
            return 0
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return max((len(token.encode()) for token in vocabulary), default=0)

    def _bytes_of(self, token_id: int, token: str) -> bytes:
        if not self._is_understood:
            text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
            return text.encode()
        if self._is_byte_level:
            return token.translate(_BYTES).encode("latin-1", errors="ignore")
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self._replaced:
            token = token.replace(old, new)
        return token.encode()


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _replacements(step: dict[str, Any]) -> list[tuple[str, str]]:
    if step["type"] == "Metaspace":
        return [(step["replacement"], " ")]
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return [(step["pattern"]["String"], step["content"])]
    return []


def _letters() -> dict[int, int]:
    """GPT-2's alphabet, letter -> byte: printable bytes are themselves, the others U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


_BYTES = _letters()
