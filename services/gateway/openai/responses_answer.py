"""/v1/responses, the answer: one message item with one text part, as JSON or as OpenAI's events.

Every event carries a sequence number. The order is created, in_progress, output_item.added,
content_part.added, output_text.delta..., output_text.done, content_part.done, output_item.done
and then exactly one of completed, incomplete and failed.
"""

from itertools import cycle
from typing import Any

import msgspec

from baton.wire.failures import BatonError
from services.gateway.openai import sse
from services.gateway.openai.collected import CollectedChoice, filled
from services.gateway.openai.errors import budget_spent
from services.gateway.openai.generation import (
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.logprob_objects import chat_columns, response_list

_NUMBER_MARK = -(2**53)


class ResponsesAnswer:
    """One answer in Responses form; stateful along one stream."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._request = request
        self._next_number = 0
        self._collected = CollectedChoice(0, chat_columns)
        self._delta_parts = self._delta_template()

    def opening(self) -> bytes:
        response = self._response("in_progress", [], None)
        return b"".join(
            [
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event(
                    "response.output_item.added",
                    output_index=0,
                    item=self._item("in_progress", None),
                ),
                self._part_event("response.content_part.added", part=_part("", [])),
            ]
        )

    def deltas(self, batch: list[Delta]) -> bytes:
        events = []
        for delta in batch:
            self._collected.add(delta)
            if delta.text or delta.logprobs:
                events.append(self._delta_event(delta))
        return b"".join(events)

    def closing(self, usage: Usage) -> list[bytes]:
        part, status = self._part(), self._status
        text, logprobs = part["text"], part["logprobs"]
        item = self._item(status, part)
        response = self._response(status, [item], usage)
        events = [
            self._part_event("response.output_text.done", text=text, logprobs=logprobs),
            self._part_event("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=response),
        ]
        return self._filled(b"".join(events))

    def failure(self, error: BatonError) -> list[bytes]:
        part = self._part()
        output = [self._item("incomplete", part)] if part["text"] else []
        response = self._response("failed", output, None)
        response["error"] = _error_object(error)
        return self._filled(self._event("response.failed", response=response))

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            self._collected.add(delta)

    def whole(self, usage: Usage) -> list[bytes]:
        status = self._status
        response = self._response(status, [self._item(status, self._part())], usage)
        return self._filled(msgspec.json.encode(response))

    def _filled(self, encoded: bytes) -> list[bytes]:
        """The pieces of JSON that repeats the one list of logprobs."""
        return filled(encoded, cycle(self._collected.logprob_lists))

    def _event(self, kind: str, **fields: object) -> bytes:
        number = self._next_number
        self._next_number += 1
        return sse.named_event(kind, {"type": kind, **fields, "sequence_number": number})

    def _part_event(self, kind: str, **fields: object) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _delta_event(self, delta: Delta) -> bytes:
        if delta.logprobs:
            return self._part_event(
                "response.output_text.delta",
                delta=delta.text,
                logprobs=response_list(delta.logprobs),
            )
        before, between, after = self._delta_parts
        number = self._next_number
        self._next_number += 1
        return b"%b%b%b%d%b" % (before, msgspec.json.encode(delta.text), between, number, after)

    def _delta_template(self) -> tuple[bytes, bytes, bytes]:
        self._next_number = _NUMBER_MARK
        event = self._part_event(
            "response.output_text.delta", delta=sse.TextTemplate.MARK, logprobs=[]
        )
        self._next_number = 0
        before, _, rest = event.partition(msgspec.json.encode(sse.TextTemplate.MARK))
        between, _, after = rest.partition(b"%d" % _NUMBER_MARK)
        return before, between, after

    @property
    def _status(self) -> str:
        return _STATUS[self._collected.finish_reason or FinishReason.STOP]

    def _part(self) -> dict[str, Any]:
        return _part(self._collected.delta.text, self._collected.logprob_marks["content"])

    @property
    def _item_id(self) -> str:
        return f"msg_{self._identity.request_id}"

    def _item(self, status: str, part: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [] if part is None else [part],
        }

    def _response(self, status: str, output: list[Any], usage: Usage | None) -> dict[str, Any]:
        spent = self._collected.spent_budget
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self._identity.request_id}",
            "object": "response",
            "created_at": self._identity.created_unix_s,
            "status": status,
            "error": _error_object(budget_spent(spent)) if spent else None,
            "incomplete_details": incomplete,
            "model": self._identity.model,
            "output": output,
            "usage": None if usage is None else _usage_object(usage),
            "temperature": self._request.temperature,
            "top_p": self._request.top_p,
            **_FIXED,
            **self._request.repeated,
        }


_STATUS = {FinishReason.STOP: "completed", FinishReason.LENGTH: "incomplete"}

# This version has no tools, no reasoning, no storage and no conversation state.
_FIXED: dict[str, Any] = {
    "background": False,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": False,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}


def _error_object(error: BatonError) -> dict[str, str]:
    """An error with one of the codes that OpenAI's clients know; the message has our own."""
    code = "rate_limit_exceeded" if error.row.http_status == 429 else "server_error"
    return {"code": code, "message": f"{error.reason}: {error.message}"}


def _part(text: str, logprobs: object) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
