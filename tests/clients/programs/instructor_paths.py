"""The paths of instructor, in its ways to ask for an object."""

from functools import partial
from typing import Any

import instructor
import openai
from questions import API_KEY, BASE_URL, FACTS, MODEL, Person, check_person, report

MESSAGES: list[Any] = [{"role": "user", "content": FACTS}]
FIELDS = {"model": MODEL, "messages": MESSAGES, "max_retries": 0}
MODES = {
    "TOOLS (default)": instructor.Mode.TOOLS,
    "TOOLS_STRICT": instructor.Mode.TOOLS_STRICT,
    "JSON_SCHEMA": instructor.Mode.JSON_SCHEMA,
    "JSON": instructor.Mode.JSON,
    "RESPONSES_TOOLS": instructor.Mode.RESPONSES_TOOLS,
}


def asking(mode: instructor.Mode) -> Any:
    """A client, which instructor changes."""
    client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    return instructor.from_openai(client, mode=mode)


def structured(mode: instructor.Mode) -> None:
    client = asking(mode)
    check_person(client.chat.completions.create(response_model=Person, **FIELDS))


def stream(mode: instructor.Mode) -> None:
    client = asking(mode)
    partials = list(client.chat.completions.create_partial(response_model=Person, **FIELDS))
    assert len(partials) > 2
    check_person(Person.model_validate(partials[-1].model_dump()))


for name, mode in MODES.items():
    report(name, {"structured": partial(structured, mode), "stream": partial(stream, mode)})
