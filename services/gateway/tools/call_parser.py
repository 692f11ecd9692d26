"""Reads the tool calls in an answer as its text comes, and passes on what is text.

Arguments are passed on as they come. Text that only begins like a call, such as an object without a
name, comes out as text. A name, or an object that must be read whole, has at most MAX_HEAD_CHARS.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from functools import cache
from typing import NamedTuple

import msgspec

from services.gateway.openai.generation import CallDelta
from services.gateway.tools.call_syntax import CALL_ID, PYTHON_TAG, CallSyntax

MAX_HEAD_CHARS = 64 * 1024


class _Place(Enum):
    """The part of an answer that comes next."""

    TEXT = auto()
    BETWEEN = auto()  # the marks around calls
    NAME = auto()
    HEAD = auto()  # of an object: up to its arguments
    ARGUMENTS = auto()
    REST = auto()  # of an object: behind its arguments


class _Found(NamedTuple):
    texts: list[str]
    calls: list[CallDelta]


class JsonEnd:
    """Finds the end of a JSON object, text by text. `depth`: the objects that are open already.
    `has_begun`: there was text."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = self._is_escaped = False
        self.has_begun = depth > 0

    def feed(self, text: str) -> int | None:
        """The index behind the object's last brace, if it is in this text."""
        self.has_begun |= bool(text)
        for index, char in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif char == "\\":
                    self._is_escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None


class CallParser:
    """The calls of one choice. `new_id` names the call with a number."""

    def __init__(self, syntax: CallSyntax, new_id: Callable[[int], str]) -> None:
        self.num_calls = 0
        self._syntax = syntax
        self._new_id = new_id
        self._place = _Place.TEXT
        self._buffer = ""
        # Marks of a call of which no more is known yet.
        self._marks = ""
        self._end = JsonEnd()
        # Of an object's head, which is looked at again with each text.
        self._num_scanned = 0
        # Text came: an answer that must begin with its calls has none.
        self._is_plain = False
        self._found = _Found([], [])
        self._written_ids: set[str] = set()

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        """Take new text; returns what of it is text, and what belongs to calls."""
        self._buffer += text
        while self._step():
            pass
        return self._taken()

    def flush(self) -> tuple[str, list[CallDelta]]:
        """The rest when nothing follows."""
        if self._place in (_Place.TEXT, _Place.HEAD, _Place.NAME):
            self._found.texts.append(self._marks + self._buffer)
        self._buffer = self._marks = ""
        return self._taken()

    def _taken(self) -> tuple[str, list[CallDelta]]:
        found, self._found = self._found, _Found([], [])
        return "".join(found.texts), found.calls

    def _step(self) -> bool:
        """Go on by one part; False when that needs more text."""
        match self._place:
            case _Place.TEXT:
                return self._step_text()
            case _Place.BETWEEN:
                return self._step_between()
            case _Place.NAME:
                return self._step_name()
            case _Place.HEAD:
                return self._step_head()
            case _Place.ARGUMENTS:
                return self._step_arguments()
            case _Place.REST:
                return self._step_rest()

    def _step_text(self) -> bool:
        if self._is_plain:
            return self._pass_on(len(self._buffer))
        trigger = self._syntax.trigger
        if not trigger:
            return self._step_bare()
        index = self._buffer.find(trigger)
        if index < 0:
            return self._pass_on(len(self._buffer) - held_back(self._buffer, trigger))
        self._pass_on(len(self._buffer[:index].rstrip()))
        return self._go_to(_Place.BETWEEN)

    def _step_bare(self) -> bool:
        """Find out whether an answer begins with a call's object."""
        start = self._buffer.lstrip()
        if start.startswith(PYTHON_TAG):
            self._buffer = start = start.removeprefix(PYTHON_TAG).lstrip()
        if not start or PYTHON_TAG.startswith(start):
            return False
        if start[0] == "{":
            return self._go_to(_Place.HEAD)
        self._is_plain = True
        return True

    def _step_between(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        syntax = self._syntax
        for mark in syntax.marks:
            if self._buffer.startswith(mark):
                self._buffer = self._buffer[len(mark) :]
                self._marks += mark
                if mark == syntax.begin:
                    self._go_to(_Place.NAME if syntax.name_end else _Place.HEAD)
                return True
            if mark.startswith(self._buffer):
                return False
        if self._buffer[0] == "{" and not syntax.begin:
            return self._go_to(_Place.HEAD)
        self._marks = ""
        return self._go_to(_Place.TEXT)

    def _step_name(self) -> bool:
        name, mark, rest = self._buffer.partition(self._syntax.name_end)
        if not mark:
            return self._give_up() if len(self._buffer) > MAX_HEAD_CHARS else False
        self._begin_named(name.partition(CALL_ID)[0].strip())
        self._buffer = rest
        return self._go_to(_Place.ARGUMENTS)

    def _step_head(self) -> bool:
        if match := _head_of(self._syntax.arguments_key).match(self._buffer):
            self._begin_call(match[1])
            self._buffer = self._buffer[match.end() :]
            return self._go_to(_Place.ARGUMENTS)
        end = self._end.feed(self._buffer[self._num_scanned :])
        if end is not None:
            return self._take_object(self._num_scanned + end)
        self._num_scanned = len(self._buffer)
        is_text = self._buffer.strip() and self._buffer.lstrip()[0] != "{"
        return self._give_up() if is_text or len(self._buffer) > MAX_HEAD_CHARS else False

    def _take_object(self, end: int) -> bool:
        """Read a whole object whose parts are in another order, or of another form."""
        try:
            call = msgspec.json.decode(self._buffer[:end])
        except (msgspec.DecodeError, RecursionError):
            return self._give_up()
        name, arguments = call.get("name"), call.get(self._syntax.arguments_key, {})
        if not isinstance(name, str) or not name:
            return self._give_up()
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        self._begin_call(name)
        self._add(arguments)
        self._buffer = self._buffer[end:]
        return self._go_to(_Place.BETWEEN)

    def _step_arguments(self) -> bool:
        if not self._end.has_begun:
            self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        end = self._end.feed(self._buffer)
        self._add(self._buffer[:end])
        self._buffer = "" if end is None else self._buffer[end:]
        if end is None:
            return False
        self._end = JsonEnd(depth=1)
        return self._go_to(_Place.BETWEEN if self._syntax.name_end else _Place.REST)

    def _step_rest(self) -> bool:
        end = self._end.feed(self._buffer)
        self._buffer = "" if end is None else self._buffer[end:]
        return False if end is None else self._go_to(_Place.BETWEEN)

    def _begin_named(self, written: str) -> None:
        """Begin a call of which the model has written the name, or the id with the name in it."""
        begin = self._syntax.id_begin
        name, colon, number = written.removeprefix(begin).rpartition(":")
        if begin and colon and number.isdecimal():
            self._begin_call(name, written)
        else:
            self._begin_call(written)

    def _begin_call(self, name: str, call_id: str = "") -> None:
        if not call_id or call_id in self._written_ids:
            call_id = self._new_id(self.num_calls)
        self._written_ids.add(call_id)
        self._found.calls.append(CallDelta(self.num_calls, "", call_id, name))
        self.num_calls += 1
        self._marks = ""
        self._end = JsonEnd()

    def _add(self, arguments: str) -> None:
        self._found.calls.append(CallDelta(self.num_calls - 1, arguments))

    def _give_up(self) -> bool:
        """Take what is there for text, and all that follows."""
        self._buffer, self._marks = self._marks + self._buffer, ""
        self._is_plain = True
        return self._go_to(_Place.TEXT)

    def _go_to(self, place: _Place) -> bool:
        if place is _Place.HEAD:
            self._end, self._num_scanned = JsonEnd(), 0
        self._place = place
        return True

    def _pass_on(self, num_chars: int) -> bool:
        """Pass on the beginning of what is there as text; False, for the rest needs more."""
        self._found.texts.append(self._buffer[:num_chars])
        self._buffer = self._buffer[num_chars:]
        return False


@cache
def _head_of(arguments_key: str) -> re.Pattern[str]:
    """The beginning of a call's object, up to its arguments."""
    key = re.escape(arguments_key)
    return re.compile(rf'\s*\{{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"{key}"\s*:\s*(?=\{{)')


def held_back(text: str, trigger: str) -> int:
    """The characters at the end of a text that may belong to the trigger, or stand before it."""
    for num in range(min(len(text), len(trigger) - 1), 0, -1):
        if trigger.startswith(text[-num:]):
            break
    else:
        num = 0
    before = text[: len(text) - num]
    return num + len(before) - len(before.rstrip())
