"""docs/api.md names every field of every endpoint and no other, where it holds, and with the caps
of the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from services.gateway.anthropic import messages
from services.gateway.anthropic.messages import MessageFields
from services.gateway.openai import chat, completions, limits, responses
from services.gateway.openai.chat import ChatFields
from services.gateway.openai.completions import CompletionFields
from services.gateway.openai.responses import ResponseFields
from services.gateway.openai.vllm.tokenize import DetokenizeFields, TokenizeFields
from services.gateway.request import submission
from services.gateway.vectors.embeddings import EmbeddingFields
from services.gateway.vectors.rerank import RerankFields, ScoreFields
from tools import api_caps

STRUCTS = {"C": ChatFields, "L": CompletionFields, "R": ResponseFields}
HARMLESS = {"C": chat.UNSUPPORTED, "L": completions.UNSUPPORTED, "R": responses.UNSUPPORTED}
# By section of the page.
OTHERS: dict[str, list[type[msgspec.Struct]]] = {
    "Tokens": [TokenizeFields, DetokenizeFields],
    "Embeddings": [EmbeddingFields],
    "Rerank and score": [RerankFields, ScoreFields],
    "Messages": [MessageFields],
}
# Sections whose tables are of responses, and of chat completions and responses.
LETTERS = {"Stored responses, conversations, background": "R", "Tools": "CR"}
PAGE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
PROSE = PAGE.partition("\n## All caps\n")[0]


class Row(NamedTuple):
    """A field of a table, as it is written, with the letters of its requests."""

    section: str
    field: str
    letters: str
    holds: str

    @property
    def name(self) -> str:
        """The field of the body in which it stands."""
        return re.split(r"[.\[]", self.field)[0]


def rows() -> Iterator[Row]:
    """All fields of tables that begin with Field and tell what each holds."""
    section, head = "", [""]
    for line in PROSE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            section, head = line[3:], [""]
        elif not line.startswith("|"):
            head = [""]
        elif head == [""]:
            head = cells
        elif head[0] == "Field" and "Syntax" not in head:
            has_letters = head[1] == ""
            letters = cells[1] if has_letters else LETTERS.get(section, "")
            holds = " ".join(cells[2 if has_letters else 1 :])
            yield from (Row(section, *each, holds) for each in fields_of(cells[0], letters))


def fields_of(cell: str, letters: str) -> Iterator[tuple[str, str]]:
    """The fields of a cell with their letters: `a`, `b`; `c` | C; R."""
    groups, told = cell.split(";"), letters.split(";")
    for number, group in enumerate(groups):
        of_group = told[number] if len(told) == len(groups) else letters
        yield from ((field, of_group.strip()) for field in re.findall("`([^`]+)`", group))


ROWS = list(rows())
FOUND = {
    letter: [
        (field, cap) for (field, cap), requests in api_caps.found().items() if letter in requests
    ]
    for letter in STRUCTS
}


def numbers(text: str) -> set[int]:
    """The numbers in a text, but for powers of two and what is hardly a bound."""
    plain = re.sub(r"-?2\^\d+( - 1)?", "", text).replace(",", "")
    return {int(each) for each in re.findall(r"\d+", plain)} - {0, 1}


@pytest.mark.parametrize("letter", STRUCTS)
def test_the_tables_have_the_fields_of_each_request_and_no_others(letter: str) -> None:
    told = {row.name for row in ROWS if letter in row.letters}
    known = set(STRUCTS[letter].__struct_fields__)
    assert known - told == set()
    assert told - known <= set(HARMLESS[letter])


@pytest.mark.parametrize("section", OTHERS)
def test_a_section_has_the_fields_of_its_requests_and_no_others(section: str) -> None:
    told = {row.name for row in ROWS if row.section == section}
    known = {name for struct in OTHERS[section] for name in struct.__struct_fields__}
    assert known - told == set()
    assert told - known <= set(messages.UNSUPPORTED)


@pytest.mark.parametrize("letter", STRUCTS)
def test_the_caps_that_a_row_tells_are_the_codes(letter: str) -> None:
    for row in ROWS:
        if letter not in row.letters or not numbers(row.holds):
            continue
        own = (row.field, f"{row.field}[]", f"{row.field}.*")
        caps = [cap for field, cap in FOUND[letter] if field in own]
        assert set().union(*map(numbers, caps)) <= numbers(row.holds), (row.field, caps)


def test_the_other_limits_that_are_told_are_the_codes() -> None:
    assert f"true; 0 to {limits.MAX_LOGPROBS} of the likeliest" in PROSE
    assert f"{submission.MAX_PROMPT_LOGPROBS:,}" in PROSE
    assert f"may be {limits.MAX_CHOICES_OF_LIST:,}" in PROSE
