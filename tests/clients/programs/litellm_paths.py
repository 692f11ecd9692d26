"""The paths of LiteLLM's library, which calls OpenAI's and Anthropic's endpoints."""

import json
import os
from functools import partial
from typing import Any

# Prices would be fetched from elsewhere.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
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

OPENAI = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY}
ANTHROPIC = {
    "model": f"anthropic/{MODEL}",
    "api_base": BASE_URL.removesuffix("/v1"),
    "api_key": API_KEY,
}
SCHEMA = CityWeather.model_json_schema()
FUNCTION = {
    "name": "get_weather",
    "description": SCHEMA["description"],
    "parameters": {key: value for key, value in SCHEMA.items() if key != "description"},
}


def messages(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat(address: dict) -> None:
    check_answer(
        litellm.completion(messages=messages(QUESTION), **address).choices[0].message.content
    )


def stream(address: dict) -> None:
    chunks = litellm.completion(messages=messages(QUESTION), stream=True, **address)
    check_pieces([chunk.choices[0].delta.content or "" for chunk in chunks])


def tools(address: dict) -> None:
    given = [{"type": "function", "function": FUNCTION}]
    asked = messages(WEATHER)
    first = litellm.completion(messages=asked, tools=given, **address).choices[0].message
    (call,) = first.tool_calls
    result = get_weather(**json.loads(call.function.arguments))
    asked += [first, {"role": "tool", "tool_call_id": call.id, "content": result}]
    last = litellm.completion(messages=asked, tools=given, **address)
    check_weather(last.choices[0].message.content)


def structured(address: dict) -> None:
    answer = litellm.completion(messages=messages(FACTS), response_format=Person, **address)
    check_person(Person.model_validate_json(answer.choices[0].message.content))


def respond() -> None:
    answer = litellm.responses(input=QUESTION, **OPENAI)
    check_answer(answer.output[0].content[0].text)


def respond_stream() -> None:
    events = litellm.responses(input=QUESTION, stream=True, **OPENAI)
    check_pieces([event.delta for event in events if event.type == "response.output_text.delta"])


def batch() -> None:
    address = {**OPENAI, "model": f"text-completion-openai/{MODEL}"}
    answer = litellm.text_completion(prompt=[QUESTION, WEATHER], max_tokens=4, **address)
    assert [choice.index for choice in answer.choices] == [0, 1], answer


def all_paths(address: dict) -> dict[str, Any]:
    paths = {"chat": chat, "stream": stream, "tools": tools, "structured": structured}
    return {name: partial(path, address) for name, path in paths.items()}


report("openai/", all_paths(OPENAI))
report("openai/, responses", {"chat": respond, "stream": respond_stream})
report("anthropic/", all_paths(ANTHROPIC))
report("text-completion-openai/", {"batch": batch})
