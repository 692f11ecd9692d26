"""The paths of LlamaIndex: its models of OpenAI, and of servers like it."""

import asyncio
from functools import partial
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
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


def chat(model: Any) -> None:
    check_answer(model.chat([ChatMessage(QUESTION)]).message.content)


def stream(model: Any) -> None:
    check_pieces([part.delta or "" for part in model.stream_chat([ChatMessage(QUESTION)])])


def tools(model: Any) -> None:
    async def ask() -> str:
        return str(await FunctionAgent(tools=[get_weather], llm=model).run(WEATHER))

    check_weather(asyncio.run(ask()))


def structured(model: Any) -> None:
    check_person(model.structured_predict(Person, PromptTemplate(FACTS)))


def all_paths(model: Any) -> dict[str, Any]:
    paths = {"chat": chat, "stream": stream, "tools": tools, "structured": structured}
    return {name: partial(path, model) for name, path in paths.items()}


ADDRESS = {"model": MODEL, "api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0}
report("OpenAI", all_paths(OpenAI(**ADDRESS)))
report("OpenAIResponses", all_paths(OpenAIResponses(**ADDRESS)))
like = OpenAILike(is_chat_model=True, is_function_calling_model=True, **ADDRESS)
report("OpenAILike", all_paths(like))
