"""Structured output through the real stack, with the unchanged OpenAI client."""

import asyncio
import json
import re
import time
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.e2e.conftest import Stack

QUESTION = "What is TTFT?"


class Review(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    verdict: Literal["good", "bad"]
    score: int = pydantic.Field(ge=0, le=10)
    words: list[Literal["prefill", "decode"]] = pydantic.Field(max_length=3)


class CalendarEvent(pydantic.BaseModel):
    """Nothing here keeps a text or a list short: the model ends them."""

    name: str
    date: str
    participants: list[str]


EVENT = [
    {"role": "system", "content": "Extract the event information."},
    {"role": "user", "content": "Alice and Bob are going to a science fair on Friday."},
]


def ask(stack: Stack, **fields: Any) -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    fields = {"temperature": 1.0, "seed": 7, "max_tokens": 300, **fields}
    create = stack.client().chat.completions.create
    return create(model="baton-demo", messages=messages, **fields)


def test_parsed_answers_are_of_the_given_type(stack) -> None:
    """Three choices of one prompt, over the handoff: the first token is sampled elsewhere."""
    answer = stack.client().chat.completions.parse(
        model="baton-demo",
        messages=[{"role": "user", "content": QUESTION}],
        response_format=Review,
        temperature=1.0,
        seed=7,
        n=3,
    )
    reviews = [choice.message.parsed for choice in answer.choices]
    assert all(isinstance(review, Review) for review in reviews)
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3


def test_responses_parse_too(stack) -> None:
    response = stack.client().responses.parse(
        model="baton-demo", input=QUESTION, text_format=Review, temperature=1.0
    )
    assert isinstance(response.output_parsed, Review)
    assert response.text.format.type == "json_schema"


def test_an_event_is_parsed_from_a_sentence(stack) -> None:
    chat = stack.client().chat.completions.parse(
        model="baton-demo", messages=EVENT, response_format=CalendarEvent
    )
    response = stack.client().responses.parse(
        model="baton-demo", input=EVENT, text_format=CalendarEvent
    )
    wanted = CalendarEvent(name="science fair", date="Friday", participants=["Alice", "Bob"])
    assert (chat.choices[0].finish_reason, response.status) == ("stop", "completed")
    assert chat.choices[0].message.parsed == wanted
    assert response.output_parsed == wanted


def test_json_ends_also_where_the_question_has_nothing_to_do_with_it(stack) -> None:
    answer = stack.client().chat.completions.parse(
        model="baton-demo",
        messages=[{"role": "user", "content": QUESTION}],
        response_format=CalendarEvent,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens < 100


def test_json_object_is_an_object(stack) -> None:
    answer = ask(stack, response_format={"type": "json_object"}, temperature=0, stream=True)
    chunks = list(answer)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"regex": r"\d{4}-\d{2}-\d{2}"}}, r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        ({"guided_choice": ["prefill", "decode", "both of them"]}, "prefill|decode|both of them"),
        ({"guided_grammar": 'start: "x" ("," /[0-9]{1,2}/){2}'}, "x(,[0-9]{1,2}){2}"),
        ({"guided_grammar": 'root ::= "TTFT" ws [a-c]\nws ::= " "+'}, "TTFT +[a-c]"),
    ],
)
def test_text_matches_the_grammar(stack, extra: dict[str, Any], pattern: str) -> None:
    answer = ask(stack, extra_body=extra)
    assert re.fullmatch(pattern, answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        ({"schema": {"type": "object", "uniqueItems": True, "not": {}}}, "not"),
        ({"schema": {"type": "wrong"}}, "wrong"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_by_its_fault(stack, format: dict, reason: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        schema = {"name": "answer", **format}
        ask(stack, response_format={"type": "json_schema", "json_schema": schema})
    assert caught.value.param == "response_format"
    assert reason in caught.value.message
    assert ask(stack, extra_body={"guided_choice": ["yes"]}).choices[0].message.content == "yes"


async def test_a_schema_that_takes_too_long_costs_nobody_else(stack, reference) -> None:
    """It would take 7 s of processor time and more to compile."""
    text, _ = reference(QUESTION, 200)
    patterns = {f"^a{{{i}}}b*$": {"type": "string"} for i in range(300)}
    schema = {"name": "bomb", "schema": {"type": "object", "patternProperties": patterns}}
    async with stack.async_client() as client:

        async def chat(**fields: Any) -> Any:
            messages = [{"role": "user", "content": QUESTION}]
            create = client.chat.completions.create
            return await create(model="baton-demo", messages=messages, temperature=0, **fields)

        format = {"type": "json_schema", "json_schema": schema}
        began_s = time.monotonic()
        bomb = asyncio.ensure_future(chat(response_format=format))
        others_s = []
        while not bomb.done():
            asked_s = time.monotonic()
            content = (await chat(max_tokens=4)).choices[0].message.content
            others_s.append(time.monotonic() - asked_s)
            assert content
            assert text.startswith(content)
        bomb_s = time.monotonic() - began_s
        with pytest.raises(openai.BadRequestError, match="too much time or memory"):
            await bomb
        assert max(others_s) < bomb_s / 2, "somebody waited until it was stopped"
