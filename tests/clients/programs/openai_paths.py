"""The paths of OpenAI's client for Python."""

import json
from typing import Any

import openai
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

CLIENT = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def messages(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat() -> None:
    answer = CLIENT.chat.completions.create(model=MODEL, messages=messages(QUESTION))
    check_answer(answer.choices[0].message.content)


def chat_stream() -> None:
    with CLIENT.chat.completions.stream(model=MODEL, messages=messages(QUESTION)) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        check_answer(stream.get_final_completion().choices[0].message.content)
    check_pieces(pieces)


def chat_tools() -> None:
    tools = [openai.pydantic_function_tool(CityWeather, name="get_weather")]
    asked = messages(WEATHER)
    first = CLIENT.chat.completions.parse(model=MODEL, messages=asked, tools=tools)
    (call,) = first.choices[0].message.tool_calls
    result = get_weather(call.function.parsed_arguments.city)
    asked += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]
    last = CLIENT.chat.completions.create(model=MODEL, messages=asked, tools=tools)
    check_weather(last.choices[0].message.content)


def chat_structured() -> None:
    answer = CLIENT.chat.completions.parse(
        model=MODEL, messages=messages(FACTS), response_format=Person
    )
    check_person(answer.choices[0].message.parsed)


def respond() -> None:
    check_answer(CLIENT.responses.create(model=MODEL, input=QUESTION).output_text)


def respond_stream() -> None:
    with CLIENT.responses.stream(model=MODEL, input=QUESTION) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        check_answer(stream.get_final_response().output_text)
    check_pieces(pieces)


def respond_tools() -> None:
    tools = [openai.pydantic_function_tool(CityWeather, name="get_weather")["function"]]
    tools = [{"type": "function", **tool} for tool in tools]
    first = CLIENT.responses.create(model=MODEL, input=WEATHER, tools=tools)
    (call,) = first.output
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": get_weather(**json.loads(call.arguments)),
    }
    last = CLIENT.responses.create(
        model=MODEL, previous_response_id=first.id, input=[result], tools=tools
    )
    check_weather(last.output_text)


def respond_structured() -> None:
    answer = CLIENT.responses.parse(model=MODEL, input=FACTS, text_format=Person)
    check_person(answer.output_parsed)


report(
    "chat completions",
    {"chat": chat, "stream": chat_stream, "tools": chat_tools, "structured": chat_structured},
)
report(
    "responses",
    {"chat": respond, "stream": respond_stream, "tools": respond_tools,
     "structured": respond_structured},
)  # fmt: skip
