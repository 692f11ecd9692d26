"""/v1/chat/completions, the answer: JSON, or chunks."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from baton.wire.failures import BatonError
from services.gateway.openai import logprob_objects, sse
from services.gateway.openai.collected import (
    CollectedChoice,
    JsonList,
    RunningUsage,
    filled,
    logprob_lists,
)
from services.gateway.openai.errors import choice_error, error_body
from services.gateway.openai.generation import (
    CallDelta,
    Delta,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.shared_fields import usage_object


class ChatAnswer:
    """One answer in chat completion form; stateful along one stream."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._include_usage = request.include_usage
        self._extras = request.extras
        self._running: RunningUsage | None = None
        if request.extras.running_usage:
            self._running = RunningUsage(identity.num_prompt_tokens)
        self._has_logprobs = request.num_logprobs is not None
        self._collected = [
            CollectedChoice(choice, logprob_objects.chat_columns)
            for choice in range(identity.num_choices)
        ]
        self._templates = [
            sse.TextTemplate(self._chunk({"content": sse.TextTemplate.MARK}, choice))
            for choice in range(identity.num_choices)
        ]
        # Of choices that reason.
        self._reasoning_templates: dict[int, sse.TextTemplate] = {}

    def opening(self) -> bytes:
        role = {"role": "assistant", "content": "", "refusal": None}
        choices = range(self._identity.num_choices)
        return b"".join(sse.data_event(self._chunk(role, choice)) for choice in choices)

    def deltas(self, batch: list[Delta]) -> bytes:
        if len(batch) == 1 and (delta := batch[0]).is_text:
            return self._templates[delta.choice].render(delta.text)
        return b"".join([event for delta in batch for event in self._events(delta)])

    def _events(self, delta: Delta) -> Iterator[bytes]:
        if delta.reasoning:
            yield self._reasoning_event(delta)
        if delta.details is not None:
            yield sse.data_event(self._detailed_chunk(delta))
        elif delta.logprobs:
            logprobs = logprob_objects.chat_object(delta.logprobs)
            yield sse.data_event(self._chunk({"content": delta.text}, delta.choice, logprobs))
        elif delta.text:
            yield self._templates[delta.choice].render(delta.text)
        for call in delta.calls:
            called = {"tool_calls": [_call_object(call)]}
            yield sse.data_event(self._chunk(called, delta.choice))
        if delta.finish_reason:
            yield sse.data_event(self._last_chunk(delta))

    def _reasoning_event(self, delta: Delta) -> bytes:
        if self._running is not None:
            # Each chunk has a usage of its own.
            return sse.data_event(self._chunk(_reasoning(delta.reasoning), delta.choice))
        template = self._reasoning_templates.get(delta.choice)
        if template is None:
            chunk = self._chunk(_reasoning(sse.TextTemplate.MARK), delta.choice)
            template = self._reasoning_templates[delta.choice] = sse.TextTemplate(chunk)
        return template.render(delta.reasoning)

    def closing(self, usage: Usage) -> list[bytes]:
        if not self._include_usage:
            return [sse.DONE]
        return [sse.data_event(self._frame([], usage_object(usage))) + sse.DONE]

    def failure(self, error: BatonError) -> list[bytes]:
        return [b"data: " + error_body(error) + b"\n\n"]

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            self._collected[delta.choice].add(delta)

    def whole(self, usage: Usage) -> list[bytes]:
        extras = self._extras
        of_prompt = self._collected[0].details.of_prompt(extras) if extras.of_prompt else {}
        body = msgspec.json.encode(
            {
                **self._head("chat.completion"),
                "choices": [self._choice_object(choice) for choice in self._collected],
                "usage": usage_object(usage),
                **of_prompt,
            }
        )
        lists: Iterable[JsonList] = logprob_lists(self._collected) if self._has_logprobs else ()
        if extras.of_prompt:
            lists = chain(lists, self._collected[0].details.lists_of_prompt(extras))
        return filled(body, lists)

    def _detailed_chunk(self, delta: Delta) -> dict[str, Any]:
        """A chunk with the ids of its tokens, or of the prompt's, where they are wanted."""
        logprobs = logprob_objects.chat_object(delta.logprobs) if delta.logprobs else None
        content = {"content": delta.text} if delta.text or delta.logprobs else {}
        chunk = self._chunk(content, delta.choice, logprobs=logprobs)
        if self._running is not None:
            chunk["usage"] = self._running.after(delta)
        if delta.details is not None and self._extras.token_ids:
            if delta.details.is_prompt:
                chunk["prompt_token_ids"] = delta.details.token_ids
            else:
                chunk["choices"][0]["token_ids"] = delta.details.token_ids
        return chunk

    def _chunk(
        self,
        delta: dict[str, Any],
        choice: int,
        logprobs: object = None,
    ) -> dict[str, Any]:
        entry = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._frame([entry], None if self._running is None else self._running.now())

    def _last_chunk(self, delta: Delta) -> object:
        entry = {
            "index": delta.choice,
            "delta": {},
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            **choice_error(delta.spent_budget),
        }
        return self._frame([entry], None if self._running is None else self._running.now())

    def _choice_object(self, collected: CollectedChoice) -> dict[str, Any]:
        choice = collected.delta
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text or (None if choice.calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if choice.reasoning:
            message |= _reasoning(choice.reasoning)
        if choice.calls:
            message["tool_calls"] = [_whole_call(call) for call in choice.calls]
        logprobs = {**collected.logprob_marks, "refusal": None}
        return {
            "index": choice.choice,
            "message": message,
            "logprobs": logprobs if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
            **choice_error(choice.spent_budget),
            **(collected.details.of_answer() if self._extras.token_ids else {}),
        }

    def _frame(self, choices: list[dict[str, Any]], usage: object) -> dict[str, Any]:
        frame = {**self._head("chat.completion.chunk"), "choices": choices}
        return {**frame, "usage": usage} if self._include_usage else frame

    def _head(self, kind: str) -> dict[str, Any]:
        identity = self._identity
        return {
            "id": f"chatcmpl-{identity.request_id}",
            "object": kind,
            "created": identity.created_unix_s,
            "model": identity.model,
            "service_tier": "default",
            "system_fingerprint": identity.system_fingerprint,
        }


def _reasoning(text: str) -> dict[str, str]:
    """Reasoning under the name that vLLM gave it first, as DeepSeek, and under its newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _call_object(call: CallDelta) -> dict[str, Any]:
    """A call, or more of its arguments, in a stream."""
    if not call.call_id:
        return {"index": call.number, "function": {"arguments": call.arguments}}
    return {"index": call.number, **_whole_call(call)}


def _whole_call(call: CallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}
