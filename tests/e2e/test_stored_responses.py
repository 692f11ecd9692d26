"""Responses that are kept, and responses in the background, with the unchanged OpenAI client."""

from typing import Any

import openai
import pytest

from tests.e2e.conftest import Stack, wait_until

LONG = {"max_output_tokens": 400}
FIELDS: dict[str, Any] = {"model": "baton-demo", "temperature": 0, "max_output_tokens": 12}


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def test_a_response_is_kept_followed_listed_and_deleted(stack: Stack) -> None:
    responses = stack.client().responses
    first = responses.create(input="What is TTFT?", instructions="be brief", **FIELDS)
    assert first.store is True
    assert responses.retrieve(first.id) == first
    second = responses.create(input="And TPOT?", previous_response_id=first.id, **FIELDS)
    listed = responses.input_items.list(second.id, limit=2)
    assert texts(listed) == ["And TPOT?", first.output_text, "What is TTFT?"], "over two pages"
    whole = [
        {"role": "user", "content": "What is TTFT?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And TPOT?"},
    ]
    alone = responses.create(input=whole, store=False, **FIELDS)
    assert alone.output_text == second.output_text
    assert alone.usage.input_tokens == second.usage.input_tokens
    counted = responses.input_tokens.count(model="baton-demo", input=whole)
    assert counted.input_tokens == alone.usage.input_tokens
    responses.delete(first.id)
    for gone in (first.id, alone.id):
        with pytest.raises(openai.NotFoundError):
            responses.retrieve(gone)
    with pytest.raises(openai.BadRequestError) as refused:
        responses.create(input="x", previous_response_id=first.id, **FIELDS)
    assert refused.value.code == "previous_response_not_found"


def test_a_conversation_grows_with_its_responses(stack: Stack) -> None:
    client = stack.client()
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "My name is Ann."}]
    )
    answer = client.responses.create(input="What is TTFT?", conversation=conversation.id, **FIELDS)
    assert answer.conversation.id == conversation.id
    items = client.conversations.items.list(conversation.id, order="asc")
    assert texts(items) == ["My name is Ann.", "What is TTFT?", answer.output_text]
    client.conversations.items.delete(items.first_id, conversation_id=conversation.id)
    assert len(list(client.conversations.items.list(conversation.id))) == 2
    assert client.conversations.delete(conversation.id).deleted


def test_a_response_in_the_background_is_polled(stack: Stack) -> None:
    responses = stack.client().responses
    created = responses.create(input="What is TTFT?", background=True, **FIELDS)
    assert created.status == "queued"
    wait_until(lambda: responses.retrieve(created.id).status not in ("queued", "in_progress"))
    ended = responses.retrieve(created.id)
    assert ended.status == responses.create(input="What is TTFT?", **FIELDS).status
    assert ended.usage.output_tokens > 0


def test_a_stream_in_the_background_is_resumed_after_its_client_broke_off(stack: Stack) -> None:
    responses = stack.client().responses
    fields = FIELDS | {"max_output_tokens": 60}
    events = []
    with responses.create(input="What is TTFT?", background=True, stream=True, **fields) as stream:
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                break
    resumed = responses.retrieve(
        events[0].response.id, stream=True, starting_after=events[-1].sequence_number
    )
    events += list(resumed)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    last = events[-1].response
    assert "".join(deltas) == last.output_text
    assert last == responses.retrieve(last.id)


def test_a_response_in_the_background_is_cancelled(stack: Stack) -> None:
    responses = stack.client().responses
    created = responses.create(
        input="Count.", background=True, extra_body={"ignore_eos": True}, **FIELDS | LONG
    )
    assert responses.cancel(created.id).status == "cancelled"
    wait_until(lambda: len(stack.usage_records(created.id.removeprefix("resp_"))) == 1)
    assert responses.retrieve(created.id).status == "cancelled"
