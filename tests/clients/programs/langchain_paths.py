"""The paths of LangChain: its models of OpenAI and Anthropic."""

from functools import partial
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from questions import (
    API_KEY,
    BASE_URL,
    FACTS,
    MODEL,
    QUESTION,
    WEATHER,
    Person,
    check_answer,
    check_person,
    check_pieces,
    check_weather,
    get_weather,
    report,
)  # fmt: skip

WEATHER_TOOL = tool(get_weather)


def chat(model: Any) -> None:
    check_answer(model.invoke(QUESTION).text)


def stream(model: Any) -> None:
    check_pieces([chunk.text for chunk in model.stream(QUESTION)])


def tools(model: Any) -> None:
    asked: list[Any] = [HumanMessage(WEATHER)]
    with_tools = model.bind_tools([WEATHER_TOOL])
    first = with_tools.invoke(asked)
    asked += [first, *(WEATHER_TOOL.invoke(call) for call in first.tool_calls)]
    check_weather(with_tools.invoke(asked).text)


def structured(model: Any) -> None:
    check_person(model.with_structured_output(Person).invoke(FACTS))


def batch() -> None:
    model = OpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=8, max_retries=0)
    answers = model.batch([QUESTION, WEATHER, FACTS])
    assert len(answers) == 3, answers


def all_paths(model: Any) -> dict[str, Any]:
    paths = {"chat": chat, "stream": stream, "tools": tools, "structured": structured}
    return {name: partial(path, model) for name, path in paths.items()}


OPENAI = {"model": MODEL, "base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0}
report("ChatOpenAI", all_paths(ChatOpenAI(**OPENAI)))
report("ChatOpenAI, responses", all_paths(ChatOpenAI(use_responses_api=True, **OPENAI)))
claude = ChatAnthropic(
    model=MODEL, base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0
)
report("ChatAnthropic", all_paths(claude))
report("OpenAI (completions)", {"batch": batch})
