"""The items of a response's output as they come: reasoning, messages with text, and calls.

One item is open at a time. Each step returns the events that tell of it, without their numbers.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from services.gateway.openai.generation import CallDelta


class Event(NamedTuple):
    kind: str
    fields: dict[str, Any]


@dataclass(slots=True)
class _Message:
    """A message with one part. `logprobs`: those of its text, or a mark that stands for them."""

    item_id: str
    index: int
    logprobs: object
    texts: list[str] = field(default_factory=list)

    def part(self) -> dict[str, Any]:
        return part_object("".join(self.texts), self.logprobs)

    def shown(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        head = {"id": self.item_id, "type": "message", "status": status}
        return {**head, "role": "assistant", "content": content}

    def begun(self) -> list[Event]:
        return [Event("response.content_part.added", self.place(part=part_object("", [])))]

    def done(self) -> list[Event]:
        part = self.part()
        said = self.place(text=part["text"], logprobs=part["logprobs"])
        return [
            Event("response.output_text.done", said),
            Event("response.content_part.done", self.place(part=part)),
        ]

    def place(self, **fields: object) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0, **fields}


@dataclass(slots=True)
class _Reasoning:
    """Reasoning as it was written; nothing summarises it."""

    item_id: str
    index: int
    texts: list[str] = field(default_factory=list)

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": "".join(self.texts)}

    def shown(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        head = {"id": self.item_id, "type": "reasoning", "status": status, "summary": []}
        return {**head, "content": content, "encrypted_content": None}

    def begun(self) -> list[Event]:
        part = {"type": "reasoning_text", "text": ""}
        return [Event("response.content_part.added", self.place(part=part))]

    def done(self) -> list[Event]:
        part = self.part()
        return [
            Event("response.reasoning_text.done", self.place(text=part["text"])),
            Event("response.content_part.done", self.place(part=part)),
        ]

    def place(self, **fields: object) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0, **fields}


@dataclass(slots=True)
class _Call:
    item_id: str
    index: int
    call_id: str
    name: str
    texts: list[str] = field(default_factory=list)

    def shown(self, status: str) -> dict[str, Any]:
        head = {"id": self.item_id, "type": "function_call", "status": status}
        called = {"call_id": self.call_id, "name": self.name, "arguments": "".join(self.texts)}
        return {**head, **called}

    def begun(self) -> list[Event]:
        return []

    def done(self) -> list[Event]:
        said = self.place(name=self.name, arguments="".join(self.texts))
        return [Event("response.function_call_arguments.done", said)]

    def place(self, **fields: object) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, **fields}


class OutputItems:
    """The items of one response. `logprobs` stands for those of the whole answer's text."""

    def __init__(self, request_id: str, logprobs: object) -> None:
        self._request_id = request_id
        self._logprobs = logprobs
        self._items: list[_Message | _Reasoning | _Call] = []
        self._is_open = False

    @property
    def has_open_message(self) -> bool:
        """True while more text belongs to the newest item."""
        return self._is_open and isinstance(self._items[-1], _Message)

    def open_message(self) -> list[Event]:
        """Begin a message; it becomes the open item."""
        number = sum(isinstance(item, _Message) for item in self._items)
        item_id = f"msg_{self._request_id}" + (f"_{number}" if number else "")
        logprobs: object = [] if number else self._logprobs
        return self._open(_Message(item_id, len(self._items), logprobs))

    def add_text(self, text: str) -> dict[str, Any]:
        """Add text to the open message; returns the fields that name its place."""
        message = self._items[-1]
        assert isinstance(message, _Message)
        message.texts.append(text)
        return message.place()

    def add_reasoning(self, text: str) -> list[Event]:
        """Add to the open reasoning, or begin it."""
        events: list[Event] = []
        if not self._is_open or not isinstance(self._items[-1], _Reasoning):
            number = sum(isinstance(item, _Reasoning) for item in self._items)
            item_id = f"rs_{self._request_id}" + (f"_{number}" if number else "")
            events = self._open(_Reasoning(item_id, len(self._items)))
        reasoning = self._items[-1]
        assert isinstance(reasoning, _Reasoning)
        reasoning.texts.append(text)
        said = reasoning.place(delta=text)
        return [*events, Event("response.reasoning_text.delta", said)]

    def add_call(self, delta: CallDelta) -> list[Event]:
        """Begin a call, or add to the arguments of the open one."""
        events: list[Event] = []
        if delta.call_id:
            item_id = f"fc_{self._request_id}_{delta.number}"
            events = self._open(_Call(item_id, len(self._items), delta.call_id, delta.name))
        call = self._items[-1]
        assert isinstance(call, _Call)
        if delta.arguments:
            call.texts.append(delta.arguments)
            said = call.place(delta=delta.arguments)
            events.append(Event("response.function_call_arguments.delta", said))
        return events

    def close(self, status: str) -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        ended = {"output_index": item.index, "item": item.shown(status)}
        return [*item.done(), Event("response.output_item.done", ended)]

    def objects(self, status: str) -> list[dict[str, Any]]:
        """All items; `status` is that of the last one."""
        if not self._items:
            return []
        *before, last = self._items
        return [*(item.shown("completed") for item in before), last.shown(status)]

    def _open(self, item: _Message | _Reasoning | _Call) -> list[Event]:
        events = self.close("completed")
        self._items.append(item)
        self._is_open = True
        added = {"output_index": item.index, "item": item.shown("in_progress")}
        return [*events, Event("response.output_item.added", added), *item.begun()]


def part_object(text: str, logprobs: object) -> dict[str, Any]:
    """The one part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
