"""The paths of OpenAI's Agents SDK, over responses (its default) and chat completions."""

import asyncio
from functools import partial
from typing import Any

import agents
import openai
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

agents.set_tracing_disabled(True)


def run(kind: Any, question: str, **fields: Any) -> Any:
    """The last output of an agent. Each has a client of its own event loop."""

    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as client:
            model = kind(model=MODEL, openai_client=client)
            return await agents.Runner.run(agents.Agent("A", model=model, **fields), question)

    return asyncio.run(ask()).final_output


def chat(kind: Any) -> None:
    check_answer(run(kind, QUESTION))


def stream(kind: Any) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as client:
            model = kind(model=MODEL, openai_client=client)
            result = agents.Runner.run_streamed(agents.Agent("A", model=model), QUESTION)
            return [
                event.data.delta
                async for event in result.stream_events()
                if event.type == "raw_response_event"
                and event.data.type == "response.output_text.delta"
            ]

    check_pieces(asyncio.run(ask()))


def tools(kind: Any) -> None:
    check_weather(run(kind, WEATHER, tools=[agents.function_tool(get_weather)]))


def structured(kind: Any) -> None:
    check_person(run(kind, FACTS, output_type=Person))


PATHS = {"chat": chat, "stream": stream, "tools": tools, "structured": structured}
for name, kind in (
    ("responses", agents.OpenAIResponsesModel),
    ("chat completions", agents.OpenAIChatCompletionsModel),
):
    report(name, {path: partial(step, kind) for path, step in PATHS.items()})
