"""/v1/responses, the answer: reasoning, messages and calls, as JSON or as OpenAI's events.

Every event carries a sequence number. The order is created, in_progress; for each message
output_item.added, content_part.added, output_text.delta..., output_text.done, content_part.done,
output_item.done; for reasoning the same with reasoning_text.delta... and .done; for each call
output_item.added, function_call_arguments.delta... and .done, output_item.done; and then exactly
one of completed, incomplete and failed.
"""

from itertools import cycle
from typing import Any

import msgspec

from baton.wire.failures import BatonError
from services.gateway.openai import sse
from services.gateway.openai.collected import CollectedChoice, filled
from services.gateway.openai.errors import budget_spent
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.logprob_objects import chat_columns, response_list
from services.gateway.openai.response_items import Event, OutputItems
from services.gateway.openai.vllm.tokenize import Unstreamed

_NUMBER_MARK = -(2**53)


class ResponsesAnswer:
    """One answer in Responses form; stateful along one stream."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._request = request
        self._next_number = 0
        self._is_queued = False
        self._collected = CollectedChoice(0, chat_columns)
        self._items = OutputItems(identity.request_id, self._collected.logprob_marks["content"])
        # Of the open message's delta events: before the text, up to the number, and behind it.
        self._delta_parts = (b"", b"", b"")

    @property
    def last_number(self) -> int:
        """The number of the last event; -1 before the first one."""
        return self._next_number - 1

    def queued(self) -> bytes:
        """The events of a response that waits, in the background. `opening` comes later."""
        self._is_queued = True
        response = self._response("queued", [], None)
        created = self._event("response.created", response=response)
        return created + self._event("response.queued", response=response)

    def opening(self) -> bytes:
        response = self._response("in_progress", [], None)
        events = [] if self._is_queued else [self._event("response.created", response=response)]
        events.append(self._event("response.in_progress", response=response))
        prompt = self._request.prompt
        may_call = isinstance(prompt, ChatMessages) and prompt.tools is not None
        if not (may_call or self._request.may_reason):
            events.append(self._open_message())
        return b"".join(events)

    def deltas(self, batch: list[Delta]) -> bytes:
        events = []
        for delta in batch:
            self._collected.add(delta)
            if delta.reasoning:
                events += self._filled(self._events(self._items.add_reasoning(delta.reasoning)))
            if delta.text or delta.logprobs:
                if not self._items.has_open_message:
                    events.append(self._open_message())
                events.append(self._delta_event(delta))
            for call in delta.calls:
                events += self._filled(self._events(self._items.add_call(call)))
        return b"".join(events)

    def closing(self, usage: Usage) -> list[bytes]:
        status = self._status
        events = b"" if self._items.objects(status) else self._open_message()
        events += self._events(self._items.close(status))
        response = self._response(status, self._items.objects(status), usage)
        events += self._event(f"response.{status}", response=response)
        return self._filled(events)

    def failure(self, error: BatonError) -> list[bytes]:
        collected = self._collected.delta
        has_output = collected.text or collected.calls or collected.reasoning
        output = self._items.objects("incomplete") if has_output else []
        usage_at = self._identity.usage_at
        response = self._response("failed", output, usage_at and usage_at(0))
        response["error"] = _error_object(error)
        return self._filled(self._event("response.failed", response=response))

    def collect(self, batch: list[Delta]) -> None:
        items = self._items
        for delta in batch:
            self._collected.add(delta)
            if delta.reasoning:
                items.add_reasoning(delta.reasoning)
            if delta.text or delta.logprobs:
                if not items.has_open_message:
                    items.open_message()
                items.add_text(delta.text)
            for call in delta.calls:
                items.add_call(call)

    def whole(self, usage: Usage) -> list[bytes]:
        status = self._status
        if not self._items.objects(status):
            self._items.open_message()
        response = self._response(status, self._items.objects(status), usage)
        return self._filled(msgspec.json.encode(response))

    def _filled(self, encoded: bytes) -> list[bytes]:
        """The pieces of JSON that repeats the one list of logprobs."""
        return filled(encoded, cycle(self._collected.logprob_lists))

    def _event(self, kind: str, **fields: object) -> bytes:
        number = self._next_number
        self._next_number += 1
        return sse.named_event(kind, {"type": kind, **fields, "sequence_number": number})

    def _events(self, events: list[Event]) -> bytes:
        return b"".join(self._event(event.kind, **event.fields) for event in events)

    def _open_message(self) -> bytes:
        events = self._events(self._items.open_message())
        self._delta_parts = self._delta_template()
        return events

    def _delta_event(self, delta: Delta) -> bytes:
        place = self._items.add_text(delta.text)
        if delta.logprobs:
            logprobs = response_list(delta.logprobs)
            fields = {**place, "delta": delta.text, "logprobs": logprobs}
            return self._event("response.output_text.delta", **fields)
        before, between, after = self._delta_parts
        number = self._next_number
        self._next_number += 1
        return b"%b%b%b%d%b" % (before, msgspec.json.encode(delta.text), between, number, after)

    def _delta_template(self) -> tuple[bytes, bytes, bytes]:
        number, self._next_number = self._next_number, _NUMBER_MARK
        fields = {**self._items.add_text(""), "delta": sse.TextTemplate.MARK, "logprobs": []}
        event = self._event("response.output_text.delta", **fields)
        self._next_number = number
        before, _, rest = event.partition(msgspec.json.encode(sse.TextTemplate.MARK))
        between, _, after = rest.partition(b"%d" % _NUMBER_MARK)
        return before, between, after

    @property
    def _status(self) -> str:
        return _STATUS.get(self._collected.finish_reason or FinishReason.STOP, "completed")

    def _response(self, status: str, output: list[Any], usage: Usage | None) -> dict[str, Any]:
        spent = self._collected.spent_budget
        incomplete = None
        if status == "incomplete":
            incomplete = {"reason": _INCOMPLETE.get(self._collected.finish_reason)}
        return {
            "id": response_id(self._identity),
            "object": "response",
            "created_at": self._identity.created_unix_s,
            "completed_at": usage.ended_unix_s if usage and status == "completed" else None,
            "status": status,
            "error": _error_object(budget_spent(spent)) if spent else None,
            "incomplete_details": incomplete,
            "model": self._identity.model,
            "output": output,
            "usage": None if usage is None else _usage_object(usage),
            "temperature": self._request.temperature,
            "top_p": self._request.top_p,
            "service_tier": "default",
            **self._request.repeated,
        }


_INCOMPLETE: dict[FinishReason | None, str] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}
_STATUS = dict.fromkeys(_INCOMPLETE, "incomplete")


class InputTokensAnswer(Unstreamed):
    """The number of tokens that the prompt of a response has."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        """Need nothing of either."""

    def collect(self, batch: list[Delta]) -> None:
        raise AssertionError("no text comes")

    def whole(self, usage: Usage) -> list[bytes]:
        counted = {"object": "response.input_tokens", "input_tokens": usage.num_prompt_tokens}
        return [msgspec.json.encode(counted)]


def response_id(identity: Identity) -> str:
    """The name of a response."""
    return f"resp_{identity.request_id}"


def _error_object(error: BatonError) -> dict[str, str]:
    """An error with one of the codes that OpenAI's clients know; the message has our own."""
    code = "rate_limit_exceeded" if error.row.http_status == 429 else "server_error"
    return {"code": code, "message": f"{error.reason}: {error.message}"}


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
