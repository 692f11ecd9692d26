"""The prompt at the start of an answer (legacy completions' echo), with its logprobs if asked."""

from array import array
from collections.abc import Iterable, Iterator

from baton.wire.failures import InternalFailure
from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import (
    Delta,
    PlainText,
    PromptTokens,
    TokenDetails,
    TokenLogprob,
)
from services.gateway.text.detokenize import TextModel
from services.gateway.text.logprob_trail import token_logprob
from services.gateway.text.token_bytes import TokenBytes

# Encoding takes about 1 us each.
MAX_LOGPROBS_OF_PIECE = 2_000
_OF_PROMPT = TokenDetails(is_prompt=True)
_CONTINUATIONS = bytes(range(0x80, 0xC0))


class PromptEcho:
    """One request's echo. `wants_logprobs`: the worker sends prompt logprobs."""

    def __init__(
        self,
        prompt: PlainText | PromptTokens,
        token_ids: bytes,
        text_model: TextModel,
        *,
        wants_logprobs: bool,
    ) -> None:
        self._token_ids = array("I", token_ids).tolist()
        self._token_bytes = text_model.token_bytes
        self._wants_prompt_logprobs = wants_logprobs
        self._offsets: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self.text = (
            prompt.text
            if isinstance(prompt, PlainText)
            else text_model.decoder.decode(self._token_ids, True)
        )
        if wants_logprobs:
            self._offsets = _offsets(self._token_ids, self.text, self._token_bytes)
            first = self._token_bytes(self._token_ids[0])
            self._logprobs.append(TokenLogprob(0, first, None, ()))

    @property
    def is_complete(self) -> bool:
        """True when no logprobs are wanted, or all are there. The first token has none: no token
        precedes it."""
        return not self._wants_prompt_logprobs or len(self._logprobs) == len(self._token_ids)

    def restart(self) -> None:
        """Begin again with another worker, which sends logprobs that are not complete from the
        start."""
        if not self.is_complete:
            del self._logprobs[1:]

    def take(self, token_logprobs: Iterable[worker_pb2.TokenLogprobs]) -> None:
        """Take in a worker's logprobs of the next prompt tokens. Raises InternalFailure."""
        for one in token_logprobs:
            index = len(self._logprobs)
            if self.is_complete or one.index != index:
                raise InternalFailure("the worker sent prompt logprobs out of order")
            offset, token_id = self._offsets[index], self._token_ids[index]
            self._logprobs.append(token_logprob(offset, token_id, one, self._token_bytes))

    def deltas(self, choice: int) -> Iterator[Delta]:
        """The start of one choice, with no more logprobs in one piece than are quickly encoded."""
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


def _offsets(token_ids: list[int], text: str, token_bytes: TokenBytes) -> list[int]:
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
