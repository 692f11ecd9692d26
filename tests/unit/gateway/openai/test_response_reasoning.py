"""Reasoning of responses: settings and items of the request, and the answer's items and events."""

import json
from dataclasses import replace
from typing import Any

from openai.types.responses import Response

from services.gateway.openai import responses
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.responses_answer import ResponsesAnswer

HI = {"role": "user", "content": "hi"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
CONTENT = [{"type": "reasoning_text", "text": "Hm."}]
DELTAS = [
    Delta(0, "", reasoning="Two "),
    Delta(0, "", reasoning="and two."),
    Delta(0, "Four."),
    Delta(0, "", FinishReason.STOP),
]


def request_of(**fields: Any) -> GenerationRequest:
    return responses.parse(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def answer_of(request: GenerationRequest) -> ResponsesAnswer:
    return ResponsesAnswer(Identity("r1", 1, "m", "f" * 12, 1), request)


def test_settings_are_accepted_and_the_effort_reaches_the_template() -> None:
    request = request_of(
        reasoning={"effort": "low", "generate_summary": "auto", "context": "auto"},
        include=["reasoning.encrypted_content", "file_search_call.results"],
        text={"verbosity": "low"},
    )
    assert isinstance(request.prompt, ChatMessages)
    assert request.prompt.template_kwargs_json == b'{"reasoning_effort":"low"}'
    assert request.num_logprobs is None
    assert request.repeated["reasoning"] == {"effort": "low", "summary": "auto"}
    assert request.repeated["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_reasoning_in_the_input_belongs_to_the_answer_behind_it() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "Four."}
    with_content = {**THOUGHT, "content": CONTENT}
    for item, key in ((call, "tool_calls"), (said, "content")):
        prompt = request_of(input=[HI, with_content, item]).prompt
        assert isinstance(prompt, ChatMessages)
        _, turn = json.loads(prompt.messages_json)
        assert (turn["role"], turn["reasoning_content"]) == ("assistant", "Hm.")
        assert turn[key]
    hidden = request_of(input=[HI, {**THOUGHT, "encrypted_content": "AAAA"}, said]).prompt
    assert isinstance(hidden, ChatMessages)
    assert json.loads(hidden.messages_json)[1] == said


def test_reasoning_is_an_item_before_the_message() -> None:
    answer = answer_of(request_of())
    answer.collect(DELTAS)
    body = b"".join(answer.whole(Usage(1, 0, 6, 4)))
    first, second = Response.model_validate_json(body).output
    assert (first.type, first.id, first.status) == ("reasoning", "rs_r1", "completed")
    assert first.content[0].text == "Two and two."
    assert second.type == "message"
    assert json.loads(body)["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def test_reasoning_is_streamed_in_the_official_order() -> None:
    answer = answer_of(replace(request_of(stream=True), may_reason=True))
    stream = answer.opening() + b"".join(answer.deltas([delta]) for delta in DELTAS)
    stream += b"".join(answer.closing(Usage(1, 0, 6, 4)))
    events = [json.loads(part.partition(b"data: ")[2]) for part in stream.split(b"\n\n") if part]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added",
        "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == [0] * 7 + [1] * 6
    item = events[8]["item"]
    assert item["content"] == [{"type": "reasoning_text", "text": "Two and two."}]


def test_an_answer_that_ends_in_its_reasoning_has_no_message() -> None:
    answer = answer_of(request_of())
    answer.collect([DELTAS[0], Delta(0, "", FinishReason.LENGTH)])
    body = json.loads(b"".join(answer.whole(Usage(1, 0, 2, 2))))
    assert [(item["type"], item["status"]) for item in body["output"]] == [
        ("reasoning", "incomplete")
    ]
    assert body["status"] == "incomplete"
