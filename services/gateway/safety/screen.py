"""What the safety hook is asked about one request: its prompt, and its answer piece by piece.

Text is held back until its piece is judged. A piece ends with a sentence, or when it is long. The
end of what came before goes with it, so that nothing hides on the border of two pieces. A choice
that is refused ends there with `content_filter`; what was held back of it is never sent.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    FinishReason,
    GenerationRequest,
    PlainText,
)
from services.gateway.safety.hook import SafetyHook
from services.gateway.text.choice_text import ChoiceText

MIN_PIECE_CHARS = 40
MAX_PIECE_CHARS = 400
OVERLAP_CHARS = 200
# A conversation's that sets none of its template.
_NO_VARIABLES = (b"", b"{}")
_SENTENCE_END = re.compile(r"[.!?\n。！？][\s\"')\]]*\Z")


@dataclass(slots=True)
class _Piece:
    """The text of one choice that is held back, and the end of what was sent before."""

    deltas: list[Delta] = field(default_factory=list)
    text: str = ""
    before: str = ""

    @property
    def is_complete(self) -> bool:
        if not self.deltas:
            return False
        if self.deltas[-1].finish_reason is not None or len(self.text) >= MAX_PIECE_CHARS:
            return True
        return len(self.text) >= MIN_PIECE_CHARS and bool(_SENTENCE_END.search(self.text))

    def take(self, delta: Delta) -> None:
        """Hold one more delta back."""
        self.deltas.append(delta)
        arguments = [call.arguments for call in delta.calls]
        self.text = "".join([self.text, delta.reasoning, delta.text, *arguments])

    def release(self) -> list[Delta]:
        """What was held back, which may be sent now."""
        deltas, self.deltas = self.deltas, []
        self.before = (self.before + self.text)[-OVERLAP_CHARS:]
        self.text = ""
        return deltas


class Screen:
    """Lets through what the hook allows of one answer."""

    def __init__(
        self,
        hook: SafetyHook,
        choices: Sequence[ChoiceText],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`waiting` counts the time within it."""
        self._hook = hook
        self._choices = choices
        self._waiting = waiting
        self._pieces = [_Piece() for _ in choices]

    async def passed(self, batch: list[Delta]) -> list[Delta]:
        """The deltas that may be sent now, in order by choice; waits for the hook where a piece is
        complete. A choice that it refuses has ended. Raises Unavailable."""
        for delta in batch:
            if self._choices[delta.choice].finish_reason != FinishReason.CONTENT_FILTER:
                self._pieces[delta.choice].take(delta)
        complete = [number for number, piece in enumerate(self._pieces) if piece.is_complete]
        if not complete:
            return []
        with self._waiting():
            judged = await asyncio.gather(*(self._judged(number) for number in complete))
        return [delta for deltas in judged for delta in deltas]

    async def _judged(self, number: int) -> list[Delta]:
        piece, choice = self._pieces[number], self._choices[number]
        if not piece.text or not await self._hook.refuses("answer", [piece.before + piece.text]):
            return piece.release()
        piece.release()
        if choice.finish_reason is None:
            choice.finish(FinishReason.CONTENT_FILTER)
        choice.finish_reason = FinishReason.CONTENT_FILTER
        return [Delta(number, "", FinishReason.CONTENT_FILTER)]


async def check_prompt(
    hook: SafetyHook, request: GenerationRequest, token_texts: Iterable[str]
) -> None:
    """Ask the hook about the texts of a prompt. `token_texts`: that of its token ids, piece by
    piece, where it has no other. Raises InvalidRequest when it refuses them, Unavailable."""
    texts = list(_texts_of(request))
    pieces = []
    for piece in token_texts:
        pieces.append(piece)
        await asyncio.sleep(0)
    if pieces:
        texts.append("".join(pieces))
    if texts and await hook.refuses("prompt", texts):
        message = "the prompt was refused by the safety check of this server"
        raise InvalidRequest(message, reason="content_filter")


def _texts_of(request: GenerationRequest) -> Iterator[str]:
    """All texts that a client may put into a prompt."""
    prompt = request.prompt
    if isinstance(prompt, PlainText):
        yield prompt.text
    elif isinstance(prompt, ChatMessages):
        for message in msgspec.json.decode(prompt.messages_json):
            yield from _strings_in(message)
        if prompt.tools is not None:
            yield prompt.tools.tools_json.decode()
        if prompt.template_kwargs_json not in _NO_VARIABLES:
            yield prompt.template_kwargs_json.decode()


def _strings_in(message: dict[str, Any]) -> Iterator[str]:
    for key in ("name", "reasoning_content", "content"):
        if message.get(key):
            yield message[key]
    for call in message.get("tool_calls") or ():
        yield msgspec.json.encode(call["function"]).decode()
