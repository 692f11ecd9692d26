"""The prompt at the start of an answer: its text (legacy completions' echo), and its details."""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from baton.wire.failures import InternalFailure
from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import (
    Delta,
    GenerationRequest,
    PlainText,
    TokenDetails,
    TokenLogprob,
)
from services.gateway.text.detokenize import TextModel, text_pieces
from services.gateway.text.logprob_trail import BytesOf, token_logprob
from services.gateway.text.token_bytes import TokenBytes
from services.gateway.text.token_details import PromptDetails

# Encoding takes about 1 us each.
MAX_LOGPROBS_OF_PIECE = 2_000
_OF_PROMPT = TokenDetails(is_prompt=True)
_CONTINUATIONS = bytes(range(0x80, 0xC0))


class PromptEcho:
    """One request's echo, and the details of its prompt. `text` is empty where only those are
    told. `bytes_of` names the tokens of logprobs."""

    def __init__(
        self, request: GenerationRequest, token_ids: bytes, text_model: TextModel, bytes_of: BytesOf
    ) -> None:
        self._token_ids = array("I", token_ids)
        self._bytes_of = bytes_of
        self.text = _text_of(request, self._token_ids, text_model) if request.echo else ""
        # Prompt tokens whose logprobs are there. The first one has none: no token precedes it.
        self._num_taken = 1
        self._num_wanted = 1 if request.num_prompt_logprobs is None else len(self._token_ids)
        self._num_top: int | None = None
        self._offsets: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        if request.echo and request.num_prompt_logprobs is not None:
            self._num_top = request.num_logprobs
        if self._num_top is not None:
            self._offsets = _offsets(self._token_ids, self.text, text_model.token_bytes)
            self._logprobs.append(TokenLogprob(0, bytes_of(self._token_ids[0]), None, ()))
        self._details: PromptDetails | None = None
        if request.extras.of_prompt:
            self._details = PromptDetails(self._token_ids, request, text_model.token_bytes)

    @property
    def is_complete(self) -> bool:
        """True when no logprobs are wanted, or all are there."""
        return self._num_taken == self._num_wanted

    def restart(self) -> None:
        """Begin again with another worker, which sends logprobs that are not complete from the
        start."""
        if not self.is_complete:
            self._num_taken = 1
            del self._logprobs[1:]
            if self._details is not None:
                self._details.restart()

    def take(self, token_logprobs: Iterable[worker_pb2.TokenLogprobs]) -> None:
        """Take in a worker's logprobs of the next prompt tokens. Raises InternalFailure."""
        for one in token_logprobs:
            index = self._num_taken
            if self.is_complete or one.index != index:
                raise InternalFailure("the worker sent prompt logprobs out of order")
            self._num_taken += 1
            token_id = self._token_ids[index]
            if self._num_top is not None:
                told = token_logprob(self._offsets[index], token_id, one, self._bytes_of)
                self._logprobs.append(told._replace(top=told.top[: self._num_top]))
            if self._details is not None:
                self._details.add(token_id, one)

    def deltas(self, choice: int) -> Iterator[Delta]:
        """The start of one choice, with no more logprobs in one piece than are quickly encoded."""
        if self._details is not None:
            yield from self._details.deltas(choice)
        if not self.text:
            return
        if not self._logprobs:
            yield Delta(choice, self.text, details=_OF_PROMPT)
            return
        num_tokens = max(MAX_LOGPROBS_OF_PIECE // (1 + len(self._logprobs[-1].top)), 1)
        for first in range(0, len(self._logprobs), num_tokens):
            piece, rest = self._logprobs[first : first + num_tokens], self._offsets[first:]
            start = rest[0] if first else 0
            end = rest[num_tokens] if num_tokens < len(rest) else len(self.text)
            text = self.text[start:end]
            yield Delta(choice, text, logprobs=tuple(piece), details=_OF_PROMPT)


def _text_of(request: GenerationRequest, ids: Sequence[int], text_model: TextModel) -> str:
    if isinstance(request.prompt, PlainText):
        return request.prompt.text
    return "".join(text_pieces(ids, text_model.decoder, skips_special=True))


def _offsets(token_ids: Sequence[int], text: str, token_bytes: TokenBytes) -> list[int]:
    """The offset of each token's text: the number of characters that begin in tokens before it."""
    offsets, num_chars = [], 0
    for token_id in token_ids:
        offsets.append(num_chars)
        if token_id not in token_bytes.special_ids:
            num_chars += len(token_bytes(token_id).translate(None, _CONTINUATIONS))
    # SentencePiece puts a space in front of the first word that the text does not have.
    if num_chars == len(text) + 1:
        return [max(offset - 1, 0) for offset in offsets]
    return offsets
