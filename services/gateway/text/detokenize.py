"""Detokenizing with the model's own tokenizer, one token at a time, never half a character.

The tokenizer files come from the tokenizer service once per model (`Artifacts`). Special tokens
have no text. `TokenTexts` follows the two-offset method of text-generation-inference: decode a
short window with and without the new ids, and send the difference once it ends in a whole
character.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer

from baton.wire.failures import BatonError, InternalFailure
from baton.wire.pooling import Pooling
from services.gateway.clients.protocols import RunInThread, TokenizerClient
from services.gateway.openai.generation import Tools
from services.gateway.reasoning import reasoning_syntax
from services.gateway.reasoning.reasoning_syntax import HARMONY, ReasoningSyntax
from services.gateway.text.token_bytes import TokenBytes
from services.gateway.tools.call_syntax import GENERIC, SYNTAXES, CallSyntax

MAX_MODELS = 16
_RETRY_S = 1.0
# A character has at most 4 bytes, hence 4 byte tokens; bytes that are still not a character after
# MAX_PENDING tokens never become one.
MAX_PENDING = 12
_CHARACTER_TOKENS = 4
# Their text is made in a millisecond.
PIECE_TOKENS = 4096
# Tokens before a piece that decide whether it starts with a space.
_CONTEXT_TOKENS = 6
_REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""


class WholeTexts(dict[int, str]):
    """The text of each token that is one or more whole characters; empty for all others, special
    ones too. Bounded by the vocabulary. Only for a decoder that joins its tokens' bytes."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self._decoder = decoder

    def __missing__(self, token_id: int) -> str:
        text = self._decoder.decode([token_id])
        self[token_id] = text = "" if _REPLACEMENT in text else text
        return text


@dataclass(frozen=True, slots=True)
class TextModel:
    """The parts of a model's files that the gateway needs, besides what its workers announce."""

    decoder: Decoder
    token_bytes: TokenBytes
    # In bytes; 0 = a token may stand for any number of them.
    longest_token: int
    # Set where tokens that are whole characters have the same text everywhere.
    whole_texts: WholeTexts | None
    # From the model's generation_config.json; None = not stated.
    default_temperature: float | None
    has_chat_template: bool = True
    # None = the way in which the model writes calls is not known.
    call_syntax: CallSyntax | None = GENERIC
    # The marks of calls that are tokens without text, by id.
    call_marks: Mapping[int, str] = field(default_factory=dict)
    # None = the model writes no reasoning, or it is not told from its answers.
    reasoning_syntax: ReasoningSyntax | None = None
    reasoning_marks: Mapping[int, str] = field(default_factory=dict)
    # All marks that grammars name by their ids.
    mark_ids: Mapping[str, int] = field(default_factory=dict)
    # Set: the model gives vectors and writes no text.
    pooling: Pooling | None = None
    # Its chat template has the roles of a reranker: query and document.
    has_pair_template: bool = False

    def marks_for(self, tools: Tools | None) -> Mapping[int, str]:
        """The marks of reasoning, and of calls where there are tools, that are tokens without text,
        by id."""
        return {**self.reasoning_marks, **self.call_marks} if tools else self.reasoning_marks


class MarkedDecoder:
    """A decoder for which some special tokens have text: marks of tool calls and of reasoning."""

    def __init__(self, decoder: Decoder, marks: Mapping[int, str]) -> None:
        self._decoder = decoder
        self._marks = marks

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids, those of marks included."""
        pieces, start = [], 0
        for index, token_id in enumerate(ids):
            if token_id in self._marks:
                pieces += [
                    self._decoder.decode(ids[start:index], skip_special_tokens),
                    self._marks[token_id],
                ]
                start = index + 1
        return "".join([*pieces, self._decoder.decode(ids[start:], skip_special_tokens)])


class TokenTexts:
    """The text of one choice's tokens as they come. `context_ids`: the end of the text that the
    output continues, so that a leading space is kept; empty for a new turn. `skips_special`:
    special tokens have no text. `whole_texts`: those of the decoder, where it has them."""

    def __init__(
        self,
        decoder: Decoder,
        context_ids: list[int],
        *,
        skips_special: bool = True,
        whole_texts: WholeTexts | None = None,
    ) -> None:
        self._decoder = decoder
        self._whole_texts = whole_texts
        self._skips_special = skips_special
        self._ids = list(context_ids)
        # Text of ids[:_sent] was sent; the window for decoding starts at _start.
        self._start = 0
        self._sent = len(context_ids)

    def add(self, token_id: int) -> str:
        """The text that is complete with this token; empty while a character is incomplete."""
        if (
            self._whole_texts is not None
            and self._sent == len(self._ids)
            and (text := self._whole_texts[token_id])
        ):
            self._ids, self._start, self._sent = [token_id], 0, 1
            return text
        self._ids.append(token_id)
        text = self._unsent(len(self._ids))
        if text and not text.endswith(_REPLACEMENT):
            self._mark_sent(len(self._ids))
            return text
        if len(self._ids) - self._sent < MAX_PENDING:
            return ""
        end = len(self._ids) - _CHARACTER_TOKENS
        text = self._unsent(end)
        self._mark_sent(end)
        return text

    def flush(self) -> str:
        """The rest of the text when no token follows; a character cut in two is one U+FFFD."""
        text = self._unsent(len(self._ids))
        self._mark_sent(len(self._ids))
        whole = text.rstrip(_REPLACEMENT)
        return whole + _REPLACEMENT if len(whole) < len(text) else text

    def _unsent(self, end: int) -> str:
        skip = self._skips_special
        before = self._decoder.decode(self._ids[self._start : self._sent], skip)
        return self._decoder.decode(self._ids[self._start : end], skip)[len(before) :]

    def _mark_sent(self, end: int) -> None:
        self._start = self._sent
        self._sent = end
        # Only the window is ever read again.
        del self._ids[: self._start]
        self._sent -= self._start
        self._start = 0


class Artifacts:
    """The text side of every model, fetched on first use, at most MAX_MODELS at a time."""

    def __init__(self, client: TokenizerClient, in_thread: RunInThread) -> None:
        self._client = client
        self._in_thread = in_thread
        self._models: OrderedDict[str, TextModel] = OrderedDict()
        self._fetching: dict[str, asyncio.Lock] = {}
        self._wanted: frozenset[str] = frozenset()
        self._asked = asyncio.Event()

    def has(self, model_fp: str) -> bool:
        """True when the model is here: then a tokenizer has it, too."""
        return model_fp in self._models

    def want(self, model_fps: Collection[str]) -> None:
        """Let `run` fetch these models before anybody asks for them."""
        if self._wanted != model_fps:
            self._wanted = frozenset(sorted(model_fps)[:MAX_MODELS])
            self._asked.set()

    async def run(self) -> None:
        """Fetch the wanted models until cancelled; one that cannot be had, again and again."""
        while True:
            self._asked.clear()
            missing = [model_fp for model_fp in self._wanted if not self.has(model_fp)]
            async with asyncio.TaskGroup() as tasks:
                for model_fp in missing:
                    tasks.create_task(self._try(model_fp))
            if all(map(self.has, self._wanted)):
                await self._asked.wait()
            else:
                await asyncio.sleep(_RETRY_S)

    async def _try(self, model_fp: str) -> None:
        with contextlib.suppress(BatonError):
            await self.text_model(model_fp)

    async def text_model(self, model_fp: str) -> TextModel:
        """The model's decoder and defaults. Raises BatonError when they cannot be fetched."""
        known = self._models.get(model_fp)
        if known is not None:
            return known
        # One fetch at a time per model; the others wait for it.
        async with self._fetching.setdefault(model_fp, asyncio.Lock()):
            known = self._models.get(model_fp)
            if known is None:
                known = await self._fetch(model_fp)
        self._fetching.pop(model_fp, None)
        return known

    async def _fetch(self, model_fp: str) -> TextModel:
        data = await self._client.artifact(model_fp)
        model = await self._in_thread(lambda: load_text_model(data))
        self._models[model_fp] = model
        if len(self._models) > MAX_MODELS:
            self._models.popitem(last=False)
        return model


def load_text_model(artifact: bytes) -> TextModel:
    """The text side of a model from its artifact: a msgpack map of file name -> bytes.

    Raises InternalFailure when the artifact lacks a tokenizer.
    """
    files = msgspec.msgpack.decode(artifact, type=dict[str, bytes])
    if "tokenizer.json" not in files:
        raise InternalFailure("the tokenizer artifact has no tokenizer.json")
    tokenizer_json = files["tokenizer.json"]
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    token_bytes = TokenBytes(tokenizer, tokenizer_json)
    description = msgspec.json.decode(files.get("detokenizer.json", b"{}"))
    syntax = SYNTAXES.get(description.get("tool_syntax", GENERIC.name))
    reasoning = reasoning_syntax.SYNTAXES.get(description.get("reasoning_syntax", ""))
    if syntax is SYNTAXES["harmony"]:
        # Calls are read as the reasoning is.
        reasoning = HARMONY
    texts = [text for each in (syntax, reasoning) if each is not None for text in each.texts]
    return TextModel(
        decoder=tokenizer,
        token_bytes=token_bytes,
        longest_token=token_bytes.longest(),
        whole_texts=WholeTexts(tokenizer) if token_bytes.are_joined else None,
        default_temperature=_default_temperature(files.get("generation_config.json", b"{}")),
        has_chat_template=description.get("has_chat_template", True),
        call_syntax=syntax,
        call_marks={} if syntax is None else _special_marks(tokenizer, syntax.texts),
        reasoning_syntax=reasoning,
        reasoning_marks={} if reasoning is None else _special_marks(tokenizer, reasoning.texts),
        mark_ids=_mark_ids(tokenizer, texts),
        pooling=msgspec.convert(description.get("pooling"), Pooling | None),
        has_pair_template=description.get("has_pair_template", False),
    )


def _special_marks(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[int, str]:
    """The special tokens that stand in the marks of a syntax, by id."""
    return {
        token_id: token.content
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and any(token.content in text for text in texts)
    }


def _mark_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, int]:
    """The tokens in marks that no text of a grammar matches, by name: the library that enforces
    grammars takes those in angle brackets for special, whatever the tokenizer says."""
    return {
        token.content: token_id
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if (token.special or (token.content.startswith("<") and token.content.endswith(">")))
        and any(token.content in text for text in texts)
    }


def _default_temperature(generation_config: bytes) -> float | None:
    config: dict[str, Any] = msgspec.json.decode(generation_config, type=dict[str, Any])
    # Only a stated greedy default replaces OpenAI's own default of 1.
    return 0.0 if config.get("do_sample") is False else None


def text_pieces(
    ids: Sequence[int], decoder: Decoder, *, skips_special: bool = False
) -> Iterator[str]:
    """The text of tokens in pieces of whole characters, which are quickly made."""
    start = 0
    while start < len(ids):
        context = list(ids[max(start - _CONTEXT_TOKENS, 0) : start])
        before = decoder.decode(context, skips_special)
        for end in range(start + PIECE_TOKENS, start + PIECE_TOKENS + _CHARACTER_TOKENS):
            text = decoder.decode([*context, *ids[start:end]], skips_special)
            if end >= len(ids) or not text.endswith(_REPLACEMENT):
                break
        yield text[len(before) :]
        start = end
