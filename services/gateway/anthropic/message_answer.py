"""/v1/messages, the answer: blocks of thoughts, text and calls, as JSON or as Anthropic's events.

The order is message_start; for each block content_block_start, content_block_delta... and
content_block_stop; then message_delta, which says why the answer ended, and message_stop. A ping
follows the first block's start. A failure is an event of its own, and then the last one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from baton.wire.failures import BatonError
from services.gateway.anthropic.errors import error_object
from services.gateway.openai import sse
from services.gateway.openai.collected import CollectedChoice
from services.gateway.openai.generation import (
    CallDelta,
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.logprob_objects import chat_columns
from services.gateway.openai.vllm.tokenize import Unstreamed


class _Kind(NamedTuple):
    """A kind of block: its fields while it is empty, and the delta that brings more."""

    empty: dict[str, Any]
    delta: str
    field: str


_KINDS = {
    "thinking": _Kind({"thinking": "", "signature": ""}, "thinking_delta", "thinking"),
    "text": _Kind({"text": ""}, "text_delta", "text"),
    "tool_use": _Kind({"input": {}}, "input_json_delta", "partial_json"),
}
_PING = sse.named_event("ping", {"type": "ping"})


class MessageAnswer:
    """One answer in the form of a message; stateful along one stream."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._max_tokens = request.max_tokens or 0
        self._stops = sorted(request.stop, key=len, reverse=True)
        # The delta that ended it, and the stop sequence at the end of its text.
        self._last: Delta | None = None
        self._stop_sequence: str | None = None
        self._has_calls = False
        self._collected = CollectedChoice(0, chat_columns)
        # Of the stream: the blocks so far, the kind of the open one, and its delta.
        self._num_blocks = 0
        self._open_kind = ""
        self._template: sse.TextTemplate | None = None

    def opening(self) -> bytes:
        usage = _usage_object(Usage(self._identity.num_prompt_tokens, 0, 0))
        return _event("message_start", message=self._message([], None, usage))

    def deltas(self, batch: list[Delta]) -> bytes:
        if len(batch) == 1 and (delta := batch[0]).is_text and self._open_kind == "text":
            assert self._template is not None, "an open block has a template"
            return self._template.render(delta.text)
        return b"".join([event for delta in batch for event in self._events(self._taken(delta))])

    def closing(self, usage: Usage) -> list[bytes]:
        end = {"stop_reason": self._stop_reason(usage), "stop_sequence": self._stop_sequence}
        last = _event("message_delta", delta=end, usage=_usage_object(usage))
        return [*self._close(), last, _event("message_stop")]

    def failure(self, error: BatonError) -> list[bytes]:
        return [sse.named_event("error", error_object(error, self._identity.request_id))]

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            self._collected.add(self._taken(delta))

    def whole(self, usage: Usage) -> list[bytes]:
        answer, content = self._collected.delta, []
        if answer.reasoning:
            signature = self._signature
            content.append(_block("thinking", thinking=answer.reasoning, signature=signature))
        if answer.text:
            content.append(_block("text", text=answer.text))
        content += [_call_block(call) for call in answer.calls if _is_whole(call)]
        message = self._message(content, self._stop_reason(usage), _usage_object(usage))
        return [msgspec.json.encode(message)]

    def _taken(self, delta: Delta) -> Delta:
        """The delta without the stop sequence that ended the answer."""
        if delta.calls:
            self._has_calls = True
        if delta.finish_reason is None:
            return delta
        self._last = delta
        if delta.finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
            for stop in self._stops:
                if delta.text.endswith(stop):
                    self._stop_sequence = stop
                    return replace(delta, text=delta.text.removesuffix(stop))
        return delta

    def _events(self, delta: Delta) -> Iterator[bytes]:
        if delta.reasoning:
            yield from self._more("thinking", delta.reasoning)
        if delta.text:
            yield from self._more("text", delta.text)
        for call in delta.calls:
            if call.call_id:
                yield from self._open("tool_use", id=call.call_id, name=call.name)
            if call.arguments:
                yield from self._more("tool_use", call.arguments)

    def _more(self, kind: str, text: str) -> Iterator[bytes]:
        """The events of new text in a block of this kind, which is opened if need be."""
        if self._open_kind != kind:
            yield from self._open(kind)
        assert self._template is not None, "an open block has a template"
        yield self._template.render(text)

    def _open(self, kind: str, **fields: str) -> Iterator[bytes]:
        yield from self._close()
        index = self._num_blocks
        block = _block(kind, **fields, **_KINDS[kind].empty)
        yield _event("content_block_start", index=index, content_block=block)
        if not index:
            yield _PING
        delta = {"type": _KINDS[kind].delta, _KINDS[kind].field: sse.TextTemplate.MARK}
        payload = {"type": "content_block_delta", "index": index, "delta": delta}
        self._template = sse.TextTemplate(payload, "content_block_delta")
        self._open_kind, self._num_blocks = kind, index + 1

    def _close(self) -> Iterator[bytes]:
        """The events at the end of the open block, if there is one."""
        index = self._num_blocks - 1
        if self._open_kind == "thinking":
            delta = {"type": "signature_delta", "signature": self._signature}
            yield _event("content_block_delta", index=index, delta=delta)
        if self._open_kind:
            yield _event("content_block_stop", index=index)
        self._open_kind = ""

    @property
    def _signature(self) -> str:
        """The name of the answer: clients expect a text here, and nothing is signed."""
        return self._id

    @property
    def _id(self) -> str:
        return f"msg_{self._identity.request_id}"

    def _stop_reason(self, usage: Usage) -> str:
        assert self._last is not None, "the answer has ended"
        match self._last.finish_reason:
            case FinishReason.CONTENT_FILTER:
                return "refusal"
            case FinishReason.LENGTH:
                is_full = usage.num_output_tokens < self._max_tokens
                is_full = is_full and not self._last.spent_budget
                return "model_context_window_exceeded" if is_full else "max_tokens"
        if self._has_calls:
            return "tool_use"
        return "end_turn" if self._stop_sequence is None else "stop_sequence"

    def _message(
        self, content: list[dict[str, Any]], stop_reason: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._identity.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": usage,
        }


class MessageTokensAnswer(Unstreamed):
    """The number of tokens that the prompt of a message has."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        """Need nothing of either."""

    def collect(self, batch: list[Delta]) -> None:
        raise AssertionError("no text comes")

    def whole(self, usage: Usage) -> list[bytes]:
        return [msgspec.json.encode({"input_tokens": usage.num_prompt_tokens})]


def _event(kind: str, **fields: object) -> bytes:
    return sse.named_event(kind, {"type": kind, **fields})


def _block(kind: str, **fields: object) -> dict[str, Any]:
    return {"type": kind, **fields}


def _call_block(call: CallDelta) -> dict[str, Any]:
    arguments = msgspec.Raw(call.arguments.encode() or b"{}")
    return _block("tool_use", id=call.call_id, name=call.name, input=arguments)


def _is_whole(call: CallDelta) -> bool:
    """True when the arguments are an object; those of a call that was cut off are not."""
    try:
        msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _usage_object(usage: Usage) -> dict[str, Any]:
    """Anthropic's usage: the tokens that were in the cache are not among its input tokens."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.num_reasoning_tokens},
        "service_tier": "standard",
    }
