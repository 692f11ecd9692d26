"""Reads tool calls whose arguments stand between tags, one parameter after the other.

Arguments are passed on as JSON, a parameter at a time. Text that only begins like a call comes out
as text.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from services.gateway.openai.generation import CallDelta, Function
from services.gateway.tools.call_parser import MAX_HEAD_CHARS, held_back
from services.gateway.tools.call_syntax import CallSyntax
from services.gateway.tools.tagged_schema import encoded, json_of, properties_of


class _Place(Enum):
    TEXT = auto()
    NAME = auto()
    PARAMETERS = auto()
    KEY = auto()
    VALUE = auto()
    END = auto()


class TaggedCallParser:
    """The calls of one choice. `new_id` names the call with a number; `functions` have schemas."""

    def __init__(
        self, syntax: CallSyntax, new_id: Callable[[int], str], functions: Sequence[Function]
    ) -> None:
        assert syntax.tags is not None
        self.num_calls = 0
        self._begin, self._end, self._tags = syntax.begin, syntax.end, syntax.tags
        self._new_id = new_id
        self._properties = {each.name: properties_of(each) for each in functions}
        self._place = _Place.TEXT
        self._buffer = ""
        # White space before the mark of a call of which no more is known yet.
        self._gap = ""
        # Of the open call.
        self._name = self._key = ""
        self._num_parameters = self._num_scanned = 0
        self._found: tuple[list[str], list[CallDelta]] = ([], [])

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        """Take new text; returns what of it is text, and what belongs to calls."""
        self._buffer += text
        while self._step():
            pass
        return self._taken()

    def flush(self) -> tuple[str, list[CallDelta]]:
        """The rest when nothing follows."""
        if self._place is _Place.NAME:
            self._found[0].append(self._gap + self._begin + self._buffer)
        elif self._place is _Place.TEXT and (self._buffer.strip() or not self.num_calls):
            self._found[0].append(self._buffer)
        elif self._place is _Place.PARAMETERS:
            self._close()
        self._buffer = ""
        return self._taken()

    def _taken(self) -> tuple[str, list[CallDelta]]:
        (texts, calls), self._found = self._found, ([], [])
        return "".join(texts), calls

    def _step(self) -> bool:
        """Go on by one part; False when that needs more text."""
        match self._place:
            case _Place.TEXT:
                return self._step_text()
            case _Place.NAME:
                return self._step_name()
            case _Place.PARAMETERS:
                return self._step_parameters()
            case _Place.KEY:
                return self._step_key()
            case _Place.VALUE:
                return self._step_value()
            case _Place.END:
                return self._step_end()

    def _step_text(self) -> bool:
        if self.num_calls and not self._buffer.strip():
            return False
        before, mark, after = self._buffer.partition(self._begin)
        if mark:
            text = before.rstrip()
            self._found[0].append(text)
            self._gap = before[len(text) :]
            self._buffer, self._place = after, _Place.NAME
            return True
        num_sure = len(self._buffer) - held_back(self._buffer, self._begin)
        self._found[0].append(self._buffer[:num_sure])
        self._buffer = self._buffer[num_sure:]
        return False

    def _step_name(self) -> bool:
        match = self._tags.head.match(self._buffer)
        if match is not None:
            self._begin_call(match[1])
            self._buffer, self._place = self._buffer[match.end() :], _Place.PARAMETERS
            return True
        start, begin = self._buffer.lstrip(), self._tags.name_begin
        is_call = begin.startswith(start) or start.startswith(begin)
        if is_call and len(self._buffer) <= MAX_HEAD_CHARS:
            return False
        self._found[0].append(self._gap + self._begin)
        self._place = _Place.TEXT
        return True

    def _step_parameters(self) -> bool:
        self._buffer = self._buffer.lstrip()
        after = {self._tags.key_begin: _Place.KEY, self._tags.close: _Place.END}
        for tag, place in ({**after, self._end: _Place.TEXT}).items():
            if tag and self._buffer.startswith(tag):
                self._buffer, self._place = self._buffer[len(tag) :], place
                if place is not _Place.KEY:
                    self._close()
                return True
        if any(tag.startswith(self._buffer) for tag in (*after, self._end) if tag):
            return False
        self._close()
        self._place = _Place.TEXT
        return True

    def _step_key(self) -> bool:
        key, tag, rest = self._buffer.partition(self._tags.key_end)
        if tag:
            self._key, self._buffer, self._place = key.strip(), rest, _Place.VALUE
        return bool(tag)

    def _step_value(self) -> bool:
        tags = self._tags
        end = self._buffer.find(tags.value_end, self._num_scanned)
        if end < 0:
            self._num_scanned = max(len(self._buffer) - len(tags.value_end), 0)
            return False
        value = self._buffer[:end]
        if tags.value_begin:
            value = value.partition(tags.value_begin)[2]
        self._buffer, self._num_scanned = self._buffer[end + len(tags.value_end) :], 0
        schema = self._properties.get(self._name, {}).get(self._key)
        written = json_of(value.removeprefix("\n").removesuffix("\n"), schema)
        separator = ", " if self._num_parameters else "{"
        self._num_parameters += 1
        self._add(f"{separator}{encoded(self._key)}: {written}")
        self._place = _Place.PARAMETERS
        return True

    def _step_end(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if self._buffer.startswith(self._end):
            self._buffer = self._buffer[len(self._end) :]
        elif self._end.startswith(self._buffer):
            return False
        self._place = _Place.TEXT
        return True

    def _begin_call(self, name: str) -> None:
        self._name, self._num_parameters, self._num_scanned = name.strip(), 0, 0
        call_id = self._new_id(self.num_calls)
        self._found[1].append(CallDelta(self.num_calls, "", call_id, self._name))
        self.num_calls += 1

    def _close(self) -> None:
        self._add("}" if self._num_parameters else "{}")

    def _add(self, arguments: str) -> None:
        self._found[1].append(CallDelta(self.num_calls - 1, arguments))
