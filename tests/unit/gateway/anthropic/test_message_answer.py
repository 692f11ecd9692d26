"""Answers in Anthropic's form: blocks, the order of events, and why an answer ended."""

import json
from typing import Any

import pytest

from baton.wire.failures import Overloaded
from services.gateway.anthropic import messages
from services.gateway.anthropic.message_answer import MessageAnswer
from services.gateway.openai.generation import CallDelta, Delta, FinishReason, Identity, Usage

USAGE = Usage(30, 16, 9, 4)


def answer_of(**fields: Any) -> MessageAnswer:
    hi = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "max_tokens": 9, "messages": hi, **fields}
    identity = Identity("req_1", 1, "m", "f" * 64, 1, num_prompt_tokens=30)
    return MessageAnswer(identity, messages.parse(json.dumps(body).encode()))


def events_of(deltas: list[Delta], **fields: Any) -> list[dict[str, Any]]:
    answer = answer_of(**fields)
    stream = answer.opening()
    for delta in deltas:
        stream += answer.deltas([delta])
    stream += b"".join(answer.closing(USAGE))
    events = []
    for event in stream.decode().split("\n\n")[:-1]:
        name, _, data = event.partition("\ndata: ")
        payload: dict[str, Any] = json.loads(data)
        assert name == f"event: {payload['type']}"
        events.append(payload)
    return events


def message_of(deltas: list[Delta], usage: Usage = USAGE, **fields: Any) -> dict[str, Any]:
    answer = answer_of(**fields)
    for delta in deltas:
        answer.collect([delta])
    message: dict[str, Any] = json.loads(b"".join(answer.whole(usage)))
    return message


STOP = Delta(0, "", FinishReason.STOP)
DELTAS = [
    Delta(0, "", reasoning="Hm."),
    Delta(0, "I "),
    Delta(0, "look."),
    Delta(0, "", calls=(CallDelta(0, "", "c1", "f"), CallDelta(0, '{"a"'))),
    Delta(0, "", calls=(CallDelta(0, ": 1}"), CallDelta(1, "", "c2", "g"))),
    Delta(0, "", FinishReason.TOOL_CALLS),
]


def test_events_come_in_the_official_order() -> None:
    events = events_of(DELTAS)
    told = [
        f"{event['type'].removeprefix('content_block_')} {event.get('index', '')}".strip()
        for event in events
    ]
    assert told == [
        "message_start",
        "start 0", "ping", "delta 0", "delta 0", "stop 0",
        "start 1", "delta 1", "delta 1", "stop 1",
        "start 2", "delta 2", "delta 2", "stop 2",
        "start 3", "stop 3",
        "message_delta", "message_stop",
    ]  # fmt: skip
    starts = [event["content_block"] for event in events if "content_block" in event]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "Hm."},
        {"type": "signature_delta", "signature": "msg_req_1"},
        {"type": "text_delta", "text": "I "},
        {"type": "text_delta", "text": "look."},
        {"type": "input_json_delta", "partial_json": '{"a"'},
        {"type": "input_json_delta", "partial_json": ": 1}"},
    ]


def test_a_stream_begins_with_an_empty_message_and_ends_with_its_usage() -> None:
    first, *_, last, stop = events_of([Delta(0, "yes"), STOP])
    message = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] == 30
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"] == {
        "input_tokens": 14,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 16,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
        "service_tier": "standard",
    }
    assert stop == {"type": "message_stop"}


def test_a_whole_message_has_the_blocks_of_the_stream() -> None:
    message = message_of(DELTAS)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "msg_req_1"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
    ]
    assert (message["id"], message["type"], message["role"]) == (
        "msg_req_1",
        "message",
        "assistant",
    )
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert (message["model"], message["usage"]["output_tokens"]) == ("m", 9)


def test_a_call_that_was_cut_off_is_not_in_a_whole_message() -> None:
    cut = [*DELTAS[2:4], Delta(0, "", FinishReason.LENGTH)]
    assert [block["type"] for block in message_of(cut)["content"]] == ["text"]


def test_the_stop_sequence_is_named_and_not_in_the_text() -> None:
    deltas = [Delta(0, "a"), Delta(0, "b#END", FinishReason.STOP)]
    stops = {"stop_sequences": ["END", "#END", "x"]}
    message = message_of(deltas, **stops)
    assert message["content"] == [{"type": "text", "text": "ab"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "#END")
    *_, delta, _, last, _ = events_of(deltas, **stops)
    assert delta["delta"]["text"] == "b"
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "#END"}


@pytest.mark.parametrize(
    ("last", "num_output", "reason"),
    [
        (STOP, 3, "end_turn"),
        (Delta(0, "", FinishReason.LENGTH), 9, "max_tokens"),
        (Delta(0, "", FinishReason.LENGTH), 3, "model_context_window_exceeded"),
        (Delta(0, "", FinishReason.LENGTH, (), "day's budget"), 3, "max_tokens"),
        (Delta(0, "", FinishReason.CONTENT_FILTER), 3, "refusal"),
        # The call of a tool that was named.
        (Delta(0, "", FinishReason.STOP, calls=(CallDelta(0, "{}", "c", "f"),)), 3, "tool_use"),
    ],
)
def test_an_answer_says_why_it_ended(last: Delta, num_output: int, reason: str) -> None:
    assert message_of([Delta(0, "yes"), last], Usage(3, 0, num_output))["stop_reason"] == reason


def test_an_answer_without_text_has_no_block() -> None:
    assert message_of([STOP])["content"] == []
    kinds = [event["type"] for event in events_of([STOP])]
    assert kinds == ["message_start", "message_delta", "message_stop"]


def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    (event,) = answer_of().failure(Overloaded("full"))
    name, _, data = event.decode().strip().partition("\ndata: ")
    assert name == "event: error"
    assert json.loads(data) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "full"},
        "request_id": "req_1",
    }
