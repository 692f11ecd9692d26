"""Requests with tools through the whole pipeline, in memory."""

import json
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai.chat_answer import ChatAnswer
from services.gateway.openai.generation import Usage
from tests.unit.gateway.fakes import Fleet, RecordingSink, artifact, model_state, simulate

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": CITY}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call>'


async def ask(fleet: Fleet, text: str, **fields: Any) -> RecordingSink:
    fleet.worker.texts = [text]
    return await fleet.chat(tools=TOOLS, max_tokens=500, **fields)


def calls(sink: RecordingSink) -> list[tuple[int, str, str, str]]:
    """The deltas of calls, in order."""
    return [tuple(call) for batch in sink.batches for delta in batch for call in delta.calls]


def message_of(sink: RecordingSink) -> dict[str, Any]:
    """The choice of the body that a client which does not stream would get."""
    assert sink.identity is not None
    assert sink.request is not None
    answer = ChatAnswer(sink.identity, sink.request)
    for batch in sink.batches:
        answer.collect(batch)
    body = json.loads(b"".join(answer.whole(Usage(1, 0, 1))))
    choice: dict[str, Any] = body["choices"][0]
    return choice


def chunks_of(sink: RecordingSink) -> list[dict[str, Any]]:
    assert sink.identity is not None
    assert sink.request is not None
    answer = ChatAnswer(sink.identity, sink.request)
    events = b"".join(answer.deltas(batch) for batch in sink.batches)
    return [json.loads(event[6:])["choices"][0] for event in events.split(b"\n\n") if event]


def test_a_call_is_no_text_and_ends_with_its_own_reason() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, f"I look it up.\n{CALL}")
        choice = message_of(sink)
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "I look it up."
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"city": "Paris"}'}
        assert (call["type"], len(call["id"])) == ("function", 9)

    simulate(scenario)


def test_a_streamed_call_is_named_once_and_its_arguments_follow() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await ask(fleet, f"{CALL}\n{CALL}", stream=True)
        deltas = [chunk["delta"].get("tool_calls", [None])[0] for chunk in chunks_of(sink)]
        found = [delta for delta in deltas if delta]
        firsts = [delta for delta in found if "id" in delta]
        assert [(each["index"], each["function"]["name"]) for each in firsts] == [
            (0, "f"),
            (1, "f"),
        ]
        for index in (0, 1):
            own = [each["function"]["arguments"] for each in found if each["index"] == index]
            assert len(own) > 2, "arguments come in pieces"
            assert "".join(own) == '{"city": "Paris"}'
        assert chunks_of(sink)[-1]["finish_reason"] == "tool_calls"

    simulate(scenario)


def test_ids_of_calls_differ() -> None:
    async def scenario(fleet: Fleet) -> None:
        found = [calls(await ask(fleet, f"{CALL}{CALL}")) for _ in range(2)]
        ids = [call_id for each in found for _, _, call_id, _ in each if call_id]
        assert len(ids) == len(set(ids)) == 4

    simulate(scenario)


def test_an_answer_without_a_call_is_text() -> None:
    async def scenario(fleet: Fleet) -> None:
        choice = message_of(await ask(fleet, "Sunny."))
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Sunny.", "stop")
        assert "tool_calls" not in choice["message"]
        without = await ask(fleet, CALL, tool_choice="none")
        assert message_of(without)["message"]["content"] == CALL

    simulate(scenario)


def test_required_calls_have_a_grammar_and_a_named_one_ends_with_stop() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert message_of(await ask(fleet, CALL, tool_choice="required"))["finish_reason"] == (
            "tool_calls"
        )
        named = {"type": "function", "function": {"name": "f"}}
        assert message_of(await ask(fleet, CALL, tool_choice=named))["finish_reason"] == "stop"
        await ask(fleet, CALL)
        grammars = [submit.sampling.ebnf_grammar for submit in fleet.worker.submits]
        assert [bool(grammar) for grammar in grammars] == [True, True, False]
        assert '"city"' in grammars[0]

    simulate(scenario)


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    async def scenario(fleet: Fleet) -> None:
        earlier = {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        }
        result = {"role": "tool", "tool_call_id": "c", "content": "sun"}
        hi = {"role": "user", "content": "hi"}
        await ask(fleet, "Sunny.", messages=[hi, earlier, result])
        first, *turns = json.loads(fleet.tokenizer.encoded[-1].chat.messages_json)
        assert first["role"] == "system"
        assert '"name":"f"' in first["content"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert turns[1]["content"] == '<tool_call>\n{"name":"f","arguments":{}}\n</tool_call>'
        assert turns[2]["content"] == "<tool_response>\nsun\n</tool_response>"

    simulate(scenario)


def test_a_model_whose_calls_cannot_be_read_refuses_tools() -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest, match="tools: this version cannot read"):
            await ask(fleet, CALL)
        assert not fleet.tokenizer.encoded

    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(tool_syntax="")

    simulate(scenario, prepare=prepare)


def test_an_answer_with_a_form_may_be_calls_instead_and_must_be_where_they_are_required() -> None:
    async def scenario(fleet: Fleet) -> None:
        form = {"type": "json_object"}
        assert message_of(await ask(fleet, CALL, response_format=form))["finish_reason"] == (
            "tool_calls"
        )
        text = await ask(fleet, '{"a": 1}', response_format=form)
        assert message_of(text)["message"]["content"] == '{"a": 1}'
        await ask(fleet, CALL, response_format=form, tool_choice="required")
        either, _, required = (submit.sampling for submit in fleet.worker.submits)
        assert either.json_object
        assert " | plain\n" in either.grammar_frame
        assert required.ebnf_grammar
        assert not required.grammar_frame

    simulate(scenario)


def test_arguments_between_tags_become_json() -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(tool_syntax="qwen3_coder")

    async def scenario(fleet: Fleet) -> None:
        parameter = "<parameter=city>\nParis\n</parameter>"
        text = f"<tool_call>\n<function=f>\n{parameter}\n</function>\n</tool_call>"
        choice = message_of(await ask(fleet, text))
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"city": "Paris"}'}
        assert choice["finish_reason"] == "tool_calls"

    simulate(scenario, prepare=prepare)


@pytest.mark.parametrize(("num_parameters", "num_threads"), [(2, 0), (1000, 2)])
def test_the_rules_of_long_schemas_are_written_beside_the_event_loop(
    num_parameters: int, num_threads: int
) -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.router.models = [model_state(max_model_len=100_000)]

    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        before = fleet.num_in_thread
        names = [f"parameter_{number}" for number in range(num_parameters)]
        schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        await fleet.chat(tools=tools, tool_choice="required")
        # So are the attempts of a prompt that is as long.
        assert fleet.num_in_thread - before == num_threads

    simulate(scenario, prepare=prepare)


def test_a_model_that_writes_calls_by_their_ids_is_shown_earlier_ones_so() -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(tool_syntax="kimi_k2")

    def called(call_id: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}

    async def scenario(fleet: Fleet) -> None:
        turns = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [called("call_a"), called("call_b")]},
            {"role": "tool", "tool_call_id": "call_b", "content": "2"},
        ]
        await fleet.chat(tools=TOOLS, messages=turns)
        _, answer, result = json.loads(fleet.tokenizer.encoded[0].chat.messages_json)
        assert [call["id"] for call in answer["tool_calls"]] == ["functions.f:0", "functions.f:1"]
        assert result["tool_call_id"] == "functions.f:1"

    simulate(scenario, prepare=prepare)
