"""Details of tokens, for the few who ask: their ids, and the logprobs of a prompt by token id."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    FinishReason,
    GenerationRequest,
    RankedLogprob,
    TokenDetails,
)
from services.gateway.text.choice_text import ChoiceText
from services.gateway.text.logprob_trail import MIN_LOGPROB, BytesOf

# Ids are quickly encoded; a logprob takes about 2 us.
PIECE_TOKENS = 32 * 1024
MAX_LOGPROBS_OF_PIECE = 2_000


def name_by_id(token_id: int) -> bytes:
    """The name of a token in place of its text, as vLLM has it."""
    return b"token_id:%d" % token_id


class IdentifiedChoice(ChoiceText):
    """A choice whose deltas have the ids of their tokens. Tokens whose text is held back come with
    the next text."""

    _num_told = 0

    def take(
        self, token_ids: Sequence[int], logprobs: Sequence[worker_pb2.TokenLogprobs] = ()
    ) -> Delta | None:
        delta = super().take(token_ids, logprobs)
        return None if delta is None else self._identified(delta)

    def finish(self, reason: FinishReason) -> Delta:
        return self._identified(super().finish(reason))

    def _identified(self, delta: Delta) -> Delta:
        new = self.token_ids[self._num_told : self.num_tokens]
        self._num_told = self.num_tokens
        return replace(delta, details=TokenDetails(token_ids=tuple(new)))


class PromptDetails:
    """The details of one prompt. A conversation's are told once, and not in each choice."""

    def __init__(
        self, token_ids: Sequence[int], request: GenerationRequest, bytes_of: BytesOf
    ) -> None:
        self._told_ids = token_ids if request.extras.token_ids else ()
        # The ids are one list in an event of a stream.
        self._num_in_piece = max(len(token_ids), 1) if request.stream else PIECE_TOKENS
        self._num_logprobs = request.extras.num_prompt_logprobs
        self._bytes_of = bytes_of
        self._is_chat = isinstance(request.prompt, ChatMessages)
        self._logprobs: list[dict[int, RankedLogprob] | None] = []
        self.restart()

    def restart(self) -> None:
        """Begin again: the worker's logprobs come from the start."""
        # No token is before the first one.
        self._logprobs = [] if self._num_logprobs is None else [None]

    def add(self, token_id: int, told: worker_pb2.TokenLogprobs) -> None:
        """Add the logprobs of the next prompt token."""
        if self._num_logprobs is None:
            return
        top = list(zip(told.top_ids, told.top_logprobs, strict=True))[: self._num_logprobs]
        ranked = {
            each: self._ranked(each, logprob, rank) for rank, (each, logprob) in enumerate(top, 1)
        }
        if token_id not in ranked:
            ranked[token_id] = self._ranked(token_id, told.logprob, told.rank)
        self._logprobs.append(ranked)

    def deltas(self, choice: int) -> Iterator[Delta]:
        """The details at the start of one choice, in pieces that are quickly encoded."""
        if choice and self._is_chat:
            return
        for first in range(0, len(self._told_ids), self._num_in_piece):
            piece = tuple(self._told_ids[first : first + self._num_in_piece])
            yield Delta(choice, "", details=TokenDetails(True, piece))
        num = max(MAX_LOGPROBS_OF_PIECE // (1 + (self._num_logprobs or 0)), 1)
        for first in range(0, len(self._logprobs), num):
            ranked = tuple(self._logprobs[first : first + num])
            yield Delta(choice, "", details=TokenDetails(True, prompt_logprobs=ranked))

    def _ranked(self, token_id: int, logprob: float, rank: int) -> RankedLogprob:
        text = self._bytes_of(token_id).decode("utf-8", errors="replace")
        return RankedLogprob(max(logprob, MIN_LOGPROB), rank, text)
