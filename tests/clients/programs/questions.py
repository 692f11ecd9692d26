"""The questions that every client asks, and the report of its paths.

Programs of this folder run in environments of their own, without Baton's packages. BASE_URL and
API_KEY name the stack.
"""

import json
import os
import re
import traceback
from collections.abc import Callable

import pydantic

BASE_URL = os.environ["BASE_URL"]
API_KEY = os.environ["API_KEY"]
# Examples for OpenAI's API ask for it; `baton up` answers to it.
MODEL = "gpt-4o"
QUESTION = "What is TTFT?"
WEATHER = "What is the weather in Paris?"
FACTS = "Extract name and age: Ann is 34 years old."
_MAX_ERROR_CHARS = 300


class Person(pydantic.BaseModel):
    """A person."""

    name: str
    age: int


class CityWeather(pydantic.BaseModel):
    """Get the current weather of a city."""

    city: str


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return f"18 degrees and sunny in {city}"


def check_answer(text: str | None) -> None:
    """Check the demo model's answer to QUESTION."""
    assert (text or "").startswith("TTFT is the time to first token"), repr(text)


def check_pieces(pieces: list[str]) -> None:
    """Check that the answer came in pieces."""
    check_answer("".join(pieces))
    assert len([piece for piece in pieces if piece]) > 3, pieces


def check_weather(text: str | None) -> None:
    """Check the sentence that the model makes of a function's result."""
    assert {"Paris", "degrees"} <= set(re.findall(r"\w+", text or "")), repr(text)


def check_person(person: object) -> None:
    """Check the facts of FACTS."""
    assert isinstance(person, Person), repr(person)
    assert (person.name, person.age) == ("Ann", 34), person


def report(interface: str, paths: dict[str, Callable[[], object]]) -> None:
    """Run the paths of one interface of a client, and print a line of JSON for each."""
    for path, run in paths.items():
        error = ""
        try:
            run()
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"[:_MAX_ERROR_CHARS]
            traceback.print_exc()
        print(json.dumps({"interface": interface, "path": path, "error": error}), flush=True)
