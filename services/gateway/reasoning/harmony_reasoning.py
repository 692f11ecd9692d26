"""Reads answers in harmony, the format of GPT-OSS: messages with a header and a channel each.

    analysis      reasoning
    commentary    a call, where the header names a function; else text
    final         text

Calls come out as text in which each begins with one form of header, for the parser of calls.
Source: https://cookbook.openai.com/articles/openai-harmony.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from services.gateway.reasoning import harmony_marks as marks

# A longer header is text of a model that does not keep to the format.
MAX_HEADER_CHARS = 512
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_CHANNEL = re.compile(rf"{re.escape(marks.CHANNEL)}\s*(\w+)")
_FUNCTIONS = "functions."
_ENDS = (marks.END, marks.CALL, marks.RETURN, marks.START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_BEGINNINGS = (marks.CHANNEL, marks.START, marks.MESSAGE, marks.CONSTRAIN, "to=")


class _Part(Enum):
    HEADER = auto()
    REASONING = auto()
    ANSWER = auto()


class HarmonyReasoning:
    """The messages of one choice. `num_tokens`: those of its reasoning, headers and marks included.
    `is_answer`: the last token belongs to the answer. `has_tools`: calls are read."""

    def __init__(self, *, has_tools: bool) -> None:
        self.num_tokens = 0
        self.is_answer = False
        self._has_tools = has_tools
        self._part = _Part.HEADER
        self._buffer = ""
        self._num_header_tokens = 0
        self._reasoning = ""
        # The parts that had a message already.
        self._begun: set[_Part] = set()

    def feed(self, text: str) -> str:
        """Take the text of the next token; returns the text of the answer that is complete."""
        first = self._part
        self._buffer += text
        self._num_header_tokens += first is _Part.HEADER
        self.num_tokens += first is _Part.REASONING
        self.is_answer = first is _Part.ANSWER
        answer: list[str] = []
        while self._step(answer):
            pass
        self.is_answer &= self._part is _Part.ANSWER
        return "".join(answer)

    def finish(self, text: str) -> str:
        """Take the last text, which is not a token of its own; returns the rest of the answer."""
        answer: list[str] = []
        if self._part is not _Part.HEADER:
            self._add(self._buffer + text, answer)
        return "".join(answer)

    def taken(self) -> str:
        """The reasoning since the last call."""
        text, self._reasoning = self._reasoning, ""
        return text

    def _step(self, answer: list[str]) -> bool:
        """Go on by one part; False when that needs more text."""
        if self._part is _Part.HEADER:
            return self._read_header(answer)
        end = _END.search(self._buffer)
        if end is not None:
            self._add(self._buffer[: end.start()], answer)
            self._buffer = self._buffer[end.end() :]
            self._part = _Part.HEADER
            return True
        num_sure = len(self._buffer) - _num_held_back(self._buffer, _ENDS)
        self._add(self._buffer[:num_sure], answer)
        self._buffer = self._buffer[num_sure:]
        return False

    def _read_header(self, answer: list[str]) -> bool:
        header, mark, rest = self._buffer.partition(marks.MESSAGE)
        sure = header if mark else header[: len(header) - _num_held_back(header, (marks.MESSAGE,))]
        if self._is_text(sure):
            self._part = _Part.ANSWER
            self._begun.add(_Part.ANSWER)
            self.is_answer = True
        elif mark:
            self._buffer = rest
            self._begin(header, answer)
        else:
            return False
        if self._part is _Part.REASONING:
            self.num_tokens += self._num_header_tokens
        self._num_header_tokens = 0
        return True

    def _is_text(self, header: str) -> bool:
        """True for the beginning of an answer that does not keep to the format."""
        if len(header) > MAX_HEADER_CHARS:
            return True
        start = header.lstrip()
        if self._begun or not start:
            return False
        return not any(mark.startswith(start) or start.startswith(mark) for mark in _BEGINNINGS)

    def _begin(self, header: str, answer: list[str]) -> None:
        """Begin the message behind a header."""
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        name = recipient[1] if recipient else ""
        is_function = name.startswith(_FUNCTIONS)
        is_call = self._has_tools and is_function
        is_analysis = channel is not None and channel[1] == "analysis"
        # Calls of the model's own tools, which are not here, are thoughts as well.
        is_reasoning = not is_function and (is_analysis or bool(name))
        self._part = _Part.REASONING if is_reasoning else _Part.ANSWER
        if is_call:
            answer.append(f"{marks.CALL_HEADER}{name.removeprefix(_FUNCTIONS)}{marks.MESSAGE}")
        elif self._part in self._begun:
            self._add("\n", answer)
        self._begun.add(self._part)

    def _add(self, text: str, answer: list[str]) -> None:
        if self._part is _Part.REASONING:
            self._reasoning += text
        else:
            answer.append(text)


def _num_held_back(text: str, ends: Sequence[str]) -> int:
    """The characters at the end of a text that may belong to one of these marks."""
    start = text.rfind("<")
    is_beginning = start >= 0 and any(mark.startswith(text[start:]) for mark in ends)
    return len(text) - start if is_beginning else 0
