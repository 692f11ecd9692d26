"""Reasoning through the whole pipeline, in memory."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.gateway.openai.chat_answer import ChatAnswer
from services.gateway.openai.generation import Delta
from tests.unit.gateway.fakes import Fleet, RecordingSink, artifact, simulate

THOUGHT = "<think>\nTwo and two.\n</think>\n\nFour."


def reasoning_of(sink: RecordingSink) -> str:
    return "".join(delta.reasoning for batch in sink.batches for delta in batch)


def body_of(sink: RecordingSink) -> dict[str, Any]:
    """The body that a client which does not stream would get."""
    assert sink.identity is not None
    assert sink.request is not None
    assert sink.usage is not None
    answer = ChatAnswer(sink.identity, sink.request)
    for batch in sink.batches:
        answer.collect(batch)
    body: dict[str, Any] = json.loads(b"".join(answer.whole(sink.usage)))
    return body


def with_reasoning(
    scenario: Callable[[Fleet], Awaitable[None]], *, generation_prompt: str = ""
) -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(reasoning_syntax="think")
        fleet.tokenizer.generation_prompt = generation_prompt

    simulate(scenario, prepare=prepare)


async def ask(fleet: Fleet, text: str, **fields: Any) -> RecordingSink:
    fleet.worker.texts = [text]
    return await fleet.chat(max_tokens=500, **fields)


def test_reasoning_stands_beside_the_answer_and_is_counted() -> None:
    async def scenario(fleet: Fleet) -> None:
        body = body_of(await ask(fleet, THOUGHT))
        message = body["choices"][0]["message"]
        assert message["content"] == "Four."
        assert message["reasoning_content"] == message["reasoning"] == "Two and two."
        details = body["usage"]["completion_tokens_details"]
        assert details == {"reasoning_tokens": len("<think>\nTwo and two.\n</think>")}

    with_reasoning(scenario)


def test_reasoning_is_streamed_as_it_comes() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, THOUGHT, stream=True)
        assert sink.identity is not None
        assert sink.request is not None
        answer = ChatAnswer(sink.identity, sink.request)
        events = b"".join(answer.deltas(batch) for batch in sink.batches).split(b"\n\n")
        deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event]
        thoughts = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
        assert len(thoughts) > 2
        assert "".join(thoughts) == "Two and two."
        assert "".join(delta.get("content", "") for delta in deltas) == "Four."

    with_reasoning(scenario)


def test_the_running_usage_beside_reasoning_never_falls() -> None:
    async def scenario(fleet: Fleet) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        sink = await ask(fleet, THOUGHT, stream=True, stream_options=options)
        assert sink.identity is not None
        assert sink.request is not None
        answer = ChatAnswer(sink.identity, sink.request)
        events = b"".join(answer.deltas(batch) for batch in sink.batches).split(b"\n\n")
        counts = [json.loads(event[6:])["usage"]["completion_tokens"] for event in events if event]
        assert counts == sorted(counts)
        assert counts[-1] > 0

    with_reasoning(scenario)


@pytest.mark.parametrize(
    ("generation_prompt", "text", "reasoning", "answer"),
    [
        ("<think>\n", "Two and two.\n</think>\n\nFour.", "Two and two.", "Four."),
        ("<think>\n\n</think>\n\n", "<think>Four.", "", "<think>Four."),
        ("", "Four.", "", "Four."),
    ],
)
def test_the_prompt_decides_where_the_answer_begins(
    generation_prompt: str, text: str, reasoning: str, answer: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, text)
        assert (reasoning_of(sink), sink.text()) == (reasoning, answer)

    with_reasoning(scenario, generation_prompt=generation_prompt)


def test_stop_strings_and_logprobs_are_those_of_the_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, THOUGHT, stop=["t", "ou"], logprobs=True)
        assert (reasoning_of(sink), sink.text(), sink.reason()) == ("Two and two.", "F", "stop")
        assert [entry.token for entry in sink.logprobs()] == [b"F"]
        whole = await ask(fleet, THOUGHT, logprobs=True)
        assert b"".join(entry.token for entry in whole.logprobs()) == b"Four."
        plain = await ask(fleet, "<b>Four.", logprobs=True)
        assert b"".join(entry.token for entry in plain.logprobs()) == b"<b>Four."

    with_reasoning(scenario)


def test_reasoning_can_be_left_out() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, THOUGHT, include_reasoning=False)
        assert (reasoning_of(sink), sink.text()) == ("", "Four.")
        assert sink.usage is not None
        assert sink.usage.num_reasoning_tokens > 0
        message = body_of(sink)["choices"][0]["message"]
        assert "reasoning_content" not in message

    with_reasoning(scenario)


def test_calls_are_read_behind_the_reasoning_and_not_in_it() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]

    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, f"<think>{call}</think>\n\n{call}", tools=tools)
        found: list[Delta] = [delta for batch in sink.batches for delta in batch]
        assert [call.name for delta in found for call in delta.calls if call.call_id] == ["f"]
        assert reasoning_of(sink) == call
        assert sink.reason() == "tool_calls"

    with_reasoning(scenario)


def test_an_answer_that_ends_in_its_reasoning_has_no_text() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = [THOUGHT]
        sink = await fleet.chat(max_tokens=13)
        assert (reasoning_of(sink), sink.text(), sink.reason()) == ("Two a", "", "length")
        assert body_of(sink)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 13}

    with_reasoning(scenario)


def test_earlier_reasoning_and_the_effort_reach_the_template() -> None:
    async def scenario(fleet: Fleet) -> None:
        turns = [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "Four.", "reasoning": "Two and two."},
            {"role": "user", "content": "Sure?"},
        ]
        await ask(fleet, "Yes.", messages=turns, reasoning_effort="low", verbosity="low")
        await ask(fleet, "Yes.", reasoning_effort="none")
        first, second = (encoded.chat for encoded in fleet.tokenizer.encoded)
        assert json.loads(first.messages_json)[1]["reasoning_content"] == "Two and two."
        assert json.loads(first.template_kwargs_json) == {"reasoning_effort": "low"}
        assert json.loads(second.template_kwargs_json) == {
            "enable_thinking": False,
            "thinking": False,
        }

    with_reasoning(scenario)


def test_a_form_begins_behind_the_reasoning() -> None:
    async def scenario(fleet: Fleet) -> None:
        await ask(fleet, THOUGHT, response_format={"type": "json_object"})
        await fleet.complete(max_tokens=5, response_format={"type": "json_object"})
        behind, plain = (submit.sampling for submit in fleet.worker.submits)
        assert behind.json_object
        assert 'start: ("<think>" thought)? answer' in behind.grammar_frame
        assert plain.json_object
        assert not plain.grammar_frame

    with_reasoning(scenario)


def test_harmony_is_read_with_its_calls() -> None:
    analysis = "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
    tools = [{"type": "function", "function": {"name": "f"}}]

    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(tool_syntax="harmony")

    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, analysis + call, tools=tools)
        found = [call for batch in sink.batches for delta in batch for call in delta.calls]
        assert [call.name for call in found if call.call_id] == ["f"]
        assert "".join(call.arguments for call in found) == '{"a": 1}'
        assert (reasoning_of(sink), sink.text()) == ("Look it up.", "")
        assert sink.reason() == "tool_calls"
        final = await ask(fleet, f"{analysis}<|channel|>final<|message|>Four.")
        assert (reasoning_of(final), final.text()) == ("Look it up.", "Four.")

    simulate(scenario, prepare=prepare)
