"""Tells reasoning that stands between two marks from the answer behind it, token by token.

A prompt may open the reasoning, or close it. Otherwise an answer begins with the mark, or has no
reasoning. White space at the ends of the reasoning, and line breaks behind it, belong to neither.
"""

from enum import Enum, auto

from services.gateway.reasoning.reasoning_syntax import ReasoningSyntax


class Place(Enum):
    """The part of an answer that comes next."""

    # The mark, or an answer without reasoning.
    EITHER = auto()
    REASONING = auto()
    GAP = auto()
    ANSWER = auto()


def place_behind(prompt_end: str, syntax: ReasoningSyntax) -> Place:
    """The part with which the answer to a prompt begins, by the end of the prompt's text."""
    end = prompt_end.rstrip()
    if end.endswith(syntax.end):
        return Place.ANSWER
    return Place.REASONING if end.endswith(syntax.begin) else Place.EITHER


class MarkedReasoning:
    """The reasoning of one choice. `num_tokens`: its tokens so far, those of its marks included.
    `is_answer`: the last token belongs to the answer, as far as is known."""

    def __init__(self, syntax: ReasoningSyntax, place: Place) -> None:
        self.num_tokens = 0
        self.is_answer = True
        self._syntax = syntax
        self._place = place
        self._buffer = ""
        self._num_undecided = 0
        self._reasoning = ""
        self._has_reasoning = False

    def feed(self, text: str) -> str:
        """Take the text of the next token; returns the text of the answer that is complete."""
        if self._place is Place.ANSWER:
            return text
        self._buffer += text
        if self._place is Place.EITHER:
            self._num_undecided += 1
            self._decide()
        elif self._place is Place.REASONING:
            self.num_tokens += 1
        self.is_answer = self._place is not Place.REASONING
        if self._place is Place.REASONING:
            self._read()
        return self._answer() if self._place in (Place.GAP, Place.ANSWER) else ""

    def finish(self, text: str) -> str:
        """Take the last text, which is not a token of its own; returns the rest of the answer."""
        if self._place is Place.REASONING:
            self._keep((self._buffer + text).rstrip())
            return ""
        return self._buffer + text

    def taken(self) -> str:
        """The reasoning since the last call."""
        text, self._reasoning = self._reasoning, ""
        return text

    def _decide(self) -> None:
        start, begin = self._buffer.lstrip(), self._syntax.begin
        if start.startswith(begin):
            self._buffer = start[len(begin) :]
            self.num_tokens = self._num_undecided
            self._place = Place.REASONING
        elif not begin.startswith(start):
            self._place = Place.ANSWER

    def _read(self) -> None:
        """Read reasoning, up to its end if that is there."""
        before, mark, after = self._buffer.partition(self._syntax.end)
        if mark:
            self._keep(before.rstrip())
            self._buffer, self._place = after, Place.GAP
            return
        if not self._has_reasoning:
            self._buffer = self._buffer.lstrip()
        num_sure = len(self._buffer) - num_held_back(self._buffer, self._syntax.end)
        self._keep(self._buffer[:num_sure])
        self._buffer = self._buffer[num_sure:]

    def _keep(self, reasoning: str) -> None:
        reasoning = reasoning if self._has_reasoning else reasoning.lstrip()
        self._reasoning += reasoning
        self._has_reasoning |= bool(reasoning)

    def _answer(self) -> str:
        if self._place is Place.GAP:
            self._buffer = self._buffer.lstrip("\n")
            self.is_answer = bool(self._buffer)
            self._place = Place.ANSWER if self._buffer else Place.GAP
        text, self._buffer = self._buffer, ""
        return text


def num_held_back(text: str, mark: str) -> int:
    """The characters at the end of a text that may belong to the mark, or be blanks before it."""
    num = next(n for n in range(min(len(text), len(mark)), -1, -1) if text.endswith(mark[:n]))
    before = text[: len(text) - num]
    return num + len(before) - len(before.rstrip())
