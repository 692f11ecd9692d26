"""The prompt at the start of an answer (legacy completions' echo), with its logprobs if asked."""

from array import array
from collections.abc import Iterable
from functools import cached_property

from baton.wire.failures import InternalFailure
from baton.wire.v1 import worker_pb2
from services.gateway.detokenize import TextModel
from services.gateway.generation import Delta, PlainText, PromptTokens, TokenLogprob
from services.gateway.logprob_trail import token_logprob


class PromptEcho:
    """One attempt's echo. `judged`: the worker is to tell the prompt's logprobs."""

    def __init__(
        self,
        prompt: PlainText | PromptTokens,
        token_ids: bytes,
        text_model: TextModel,
        *,
        judged: bool,
    ) -> None:
        self._token_ids = array("I", token_ids).tolist()
        self._token_bytes = text_model.token_bytes
        self._is_judged = judged
        self._told: list[worker_pb2.TokenLogprobs] = []
        self.text = (
            prompt.text
            if isinstance(prompt, PlainText)
            else text_model.decoder.decode(self._token_ids, True)
        )

    @property
    def is_complete(self) -> bool:
        """Every prompt token but the first, which nothing precedes, was judged."""
        return not self._is_judged or len(self._told) >= len(self._token_ids) - 1

    def take(self, told: Iterable[worker_pb2.TokenLogprobs]) -> None:
        """What the worker told of the next prompt tokens."""
        for one in told:
            if self.is_complete or one.index != len(self._told) + 1:
                raise InternalFailure("the worker judged the prompt out of order")
            self._told.append(one)

    def delta(self, choice: int) -> Delta:
        """The start of one choice."""
        return Delta(choice, self.text, logprobs=self._logprobs if self._is_judged else ())

    @cached_property
    def _logprobs(self) -> tuple[TokenLogprob, ...]:
        bytes_of = self._token_bytes
        entries = [TokenLogprob(0, bytes_of(self._token_ids[0]), None, ())]
        rows = zip(self._offsets()[1:], self._token_ids[1:], self._told, strict=True)
        entries += [token_logprob(offset, id, told, bytes_of) for offset, id, told in rows]
        return tuple(entries)

    def _offsets(self) -> list[int]:
        """Where each token's text starts: after the characters that begin in tokens before it."""
        special = self._token_bytes.special_ids
        offsets, num_chars = [], 0
        for token_id in self._token_ids:
            offsets.append(num_chars)
            if token_id not in special:
                num_chars += num_started_chars(self._token_bytes(token_id))
        # SentencePiece puts a space in front of the first word that the text does not have.
        has_prefix = num_chars == len(self.text) + 1
        return [max(offset - has_prefix, 0) for offset in offsets]


def num_started_chars(data: bytes) -> int:
    """Characters whose first byte is in `data`."""
    return sum(byte & 0xC0 != 0x80 for byte in data)
