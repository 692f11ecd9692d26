"""The calls of one answer: text of its choices in, text and calls out."""

import hashlib
from dataclasses import replace
from functools import partial

from services.gateway.openai.generation import Delta, FinishReason, Tools
from services.gateway.tools.call_parser import CallParser
from services.gateway.tools.call_syntax import CallSyntax
from services.gateway.tools.tagged_calls import TaggedCallParser

# Mistral's templates take ids of exactly so many letters and digits, those of others any.
_ID_CHARS = 9
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class AnswerCalls:
    """Reads the calls in the choices of one answer."""

    def __init__(self, request_id: str, tools: Tools, syntax: CallSyntax, num_choices: int) -> None:
        self._tools = tools
        new_ids = [partial(_call_id, request_id, choice) for choice in range(num_choices)]
        self._parsers: list[CallParser | TaggedCallParser] = (
            [CallParser(syntax, new_id) for new_id in new_ids]
            if syntax.tags is None
            else [TaggedCallParser(syntax, new_id, tools.functions) for new_id in new_ids]
        )

    def read(self, delta: Delta) -> Delta | None:
        """The delta with the calls that its text completes; None when there is nothing to send."""
        parser = self._parsers[delta.choice]
        text, calls = parser.feed(delta.text)
        reason = delta.finish_reason
        if reason is not None:
            rest, last = parser.flush()
            text, calls = text + rest, calls + last
            # OpenAI ends the call of a function that was named with stop.
            if reason is FinishReason.STOP and parser.num_calls and not self._tools.is_named:
                reason = FinishReason.TOOL_CALLS
        elif not (text or calls or delta.logprobs or delta.reasoning or delta.details):
            return None
        return replace(delta, text=text, calls=tuple(calls), finish_reason=reason)


def _call_id(request_id: str, choice: int, number: int) -> str:
    """An id that no other call has; the same after a failover."""
    digest = hashlib.sha256(f"{request_id}:{choice}:{number}".encode()).digest()
    value, chars = int.from_bytes(digest), []
    for _ in range(_ID_CHARS):
        value, place = divmod(value, len(_ALPHABET))
        chars.append(_ALPHABET[place])
    return "".join(chars)
