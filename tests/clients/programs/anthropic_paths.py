"""The paths of Anthropic's client for Python."""

import anthropic
from questions import (
    API_KEY,
    BASE_URL,
    FACTS,
    MODEL,
    QUESTION,
    WEATHER,
    CityWeather,
    Person,
    check_answer,
    check_person,
    check_pieces,
    check_weather,
    get_weather,
    report,
)  # fmt: skip

CLIENT = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0)
FIELDS = {"model": MODEL, "max_tokens": 200}


def messages(text: str) -> list:
    return [{"role": "user", "content": text}]


def chat() -> None:
    (block,) = CLIENT.messages.create(messages=messages(QUESTION), **FIELDS).content
    check_answer(block.text)


def stream() -> None:
    with CLIENT.messages.stream(messages=messages(QUESTION), **FIELDS) as events:
        check_pieces(list(events.text_stream))


def tools() -> None:
    schema = CityWeather.model_json_schema()
    tool = {
        "name": "get_weather",
        "description": schema.pop("description"),
        "input_schema": schema,
    }
    asked = messages(WEATHER)
    first = CLIENT.messages.create(messages=asked, tools=[tool], **FIELDS)
    (call,) = first.content
    content = get_weather(**call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    asked += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    (block,) = CLIENT.messages.create(messages=asked, tools=[tool], **FIELDS).content
    check_weather(block.text)


def structured() -> None:
    answer = CLIENT.messages.parse(messages=messages(FACTS), output_format=Person, **FIELDS)
    check_person(answer.parsed_output)


report("messages", {"chat": chat, "stream": stream, "tools": tools, "structured": structured})
