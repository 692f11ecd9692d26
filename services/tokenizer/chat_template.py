"""One chat template, ready to render conversations.

A conversation is rendered as by transformers' `apply_chat_template`, and once more with marked
literals (see `control_tokens.py`), which show the control tokens that the template wrote. If the
two texts differ, it is rendered a third time, with the request marked instead. If that text differs
as well, the conversation must not spell any control token of its own. Knows nothing of processes
and of time limits.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
import msgspec
from jinja2.exceptions import SecurityError

from services.tokenizer.control_tokens import ControlMarks
from services.tokenizer.literal_marker import LiteralMarker
from services.tokenizer.render_messages import Fault, Rendered, RenderRequest
from services.tokenizer.template_environment import (
    READING_NODES,
    RefusedByTemplate,
    attribute_names,
    create_environment,
    literals,
)

# Names under which messages carry reasoning; templates read the first one, some the second.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Stands at the end of a final message that is continued, as in transformers.
_END_OF_FINAL = "CONTINUE_FINAL_MESSAGE_TAG "
_RESERVED_KWARGS = ("messages", "tools", "documents", "add_generation_prompt")
# Errors that a template of any author can raise, apart from MemoryError.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, ArithmeticError, AssertionError, AttributeError, BufferError, LookupError,
    NameError, RuntimeError, StopIteration, SyntaxError, TypeError, ValueError,
)  # fmt: skip
# The sandbox's range() raises OverflowError.
_UNSAFE_ERRORS = (SecurityError, OverflowError, RecursionError)


class UnusableTemplate(Exception):
    """The template cannot be loaded. The message gives the reason and quotes no request."""


class RenderFailed(Exception):
    """The failure of one rendering."""

    def __init__(self, fault: Fault, message: str, param: str = "") -> None:
        super().__init__(message)
        self.answer = Rendered(fault=fault, message=message, param=param)


class _Marked(NamedTuple):
    """A template whose literals are marked, with the special tokens that it refers to."""

    marks: ControlMarks
    template: jinja2.Template
    special_tokens: dict[str, str]


class ChatTemplate:
    """A loaded template. `mark` must be called before `render`.

    `max_output_bytes` bounds the rendered text; `now` is the local time for strftime_now. Raises
    UnusableTemplate.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        max_output_bytes: int,
        now: Callable[[], datetime],
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._max_output_bytes = max_output_bytes
        self._now = now
        self._rendering_at = datetime.min
        self._environment = create_environment(lambda: self._rendering_at)
        self._tree = self._parse(source)
        self._plain = self._environment.from_string(source)
        self._literals = frozenset(literals(self._tree))
        words = {*self._literals, *attribute_names(self._tree)}
        # Roles, types and keys: words that cannot contain a part of a control token.
        self._known_words = frozenset(word for word in words if word.isidentifier())
        self._marked: _Marked | None = None

    @property
    def literal_text(self) -> str:
        """All literals, joined so that no token spans two of them."""
        return "\0".join(self._literals)

    def mark(self, marks: ControlMarks) -> None:
        """Mark the control tokens in the template's literals. Called once, before `render`."""
        tree = LiteralMarker(marks).visit(self._tree)
        code = self._environment.compile(tree)
        template = jinja2.Template.from_code(
            self._environment, code, self._environment.make_globals(None)
        )
        special_tokens = {
            name: marks.mark_literal(text) for name, text in self._special_tokens.items()
        }
        self._marked = _Marked(marks, template, special_tokens)

    def render(self, request: RenderRequest) -> Rendered:
        """Render a conversation. Raises RenderFailed; the caller handles MemoryError."""
        assert self._marked is not None, "mark comes before render"
        messages = _decode(request.messages_json, list, "messages")
        tools = _decode(request.tools_json, list, "tools") or None
        kwargs = _decode(request.template_kwargs_json, dict, "chat_template_kwargs")
        _check(messages, kwargs)
        if request.continue_final_message:
            messages = _with_marked_end(messages)
        context: dict[str, Any] = {
            "messages": [_normalized(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": request.add_generation_prompt,
        }
        self._rendering_at = self._now()
        request_values = {**context, **kwargs}
        text = self._run(self._plain, {**context, **self._special_tokens, **kwargs})
        self._check_output(text)
        marked = self._run(
            self._marked.template, {**context, **self._marked.special_tokens, **kwargs}
        )
        rendered = self._separate_control_tokens(self._marked.marks, text, marked, request_values)
        return _up_to_mark(rendered) if request.continue_final_message else rendered

    def _separate_control_tokens(
        self, marks: ControlMarks, text: str, marked: str, request_values: dict[str, Any]
    ) -> Rendered:
        """Find the control tokens of `text` that the template wrote. Raises RenderFailed."""
        spelled = marks.spelled_spans(text)
        if marks.unmark(marked) == text:
            written = marks.written_spans(marked)
            return Rendered(text, written != spelled, written)
        # The template compares its own output with its literals.
        marked_request = marks.mark_values(request_values, self._known_words)
        from_marked_request = self._run(self._plain, {**self._special_tokens, **marked_request})
        if marks.unmark(from_marked_request) == text:
            written = marks.spelled_spans(from_marked_request)
            return Rendered(text, written != spelled, written)
        # Equal sequences of control tokens: none came from the request.
        if _pieces(marks.unmark(marked), marks.written_spans(marked)) == _pieces(text, spelled):
            return Rendered(text, False, spelled)
        message = "The conversation spells control tokens that this model's chat template acts upon"
        raise RenderFailed(Fault.AMBIGUOUS, message, "messages")

    def _run(self, template: jinja2.Template, context: dict[str, Any]) -> str:
        pieces: list[str] = []
        room = self._max_output_bytes
        try:
            for piece in template.generate(**context):
                room -= len(piece)
                if room < 0:
                    break
                pieces.append(piece)
        except RefusedByTemplate as error:
            raise RenderFailed(Fault.REFUSED, self._public_message(error), "messages") from error
        except _TEMPLATE_ERRORS as error:
            # The error's own text may quote the conversation.
            message = f"The chat template cannot render this conversation ({type(error).__name__})"
            fault = Fault.UNSAFE if isinstance(error, _UNSAFE_ERRORS) else Fault.ERROR
            raise RenderFailed(fault, message, "messages") from error
        if room < 0:
            raise self._too_long()
        return "".join(pieces)

    def _check_output(self, text: str) -> None:
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            message = "The chat template wrote text that is not Unicode"
            raise RenderFailed(Fault.ERROR, message, "messages") from error
        if num_bytes > self._max_output_bytes:
            raise self._too_long()

    def _too_long(self) -> RenderFailed:
        message = f"The rendered conversation is longer than {self._max_output_bytes} bytes"
        return RenderFailed(Fault.OUTPUT_LIMIT, message, "messages")

    def _public_message(self, error: RefusedByTemplate) -> str:
        message = str(error.message)
        # Only a literal of the template certainly contains no user's text.
        if message.strip() and message in self._literals:
            return message
        return "The chat template refused the conversation"

    def _parse(self, source: str) -> jinja2.nodes.Template:
        try:
            tree = self._environment.parse(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", 0)
            raise UnusableTemplate(f"{type(error).__name__} in line {line}") from error
        for node in tree.find_all(READING_NODES):
            name = type(node).__name__.lower()
            raise UnusableTemplate(f"{name} in line {node.lineno}: templates read no other files")
        return tree


def _decode(data: bytes, kind: type, param: str) -> Any:
    if not data:
        return kind()
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RenderFailed(Fault.INVALID_VALUE, f"{param} is not valid JSON", param) from error
    if not isinstance(value, kind):
        expected = "an array" if kind is list else "an object"
        raise RenderFailed(Fault.INVALID_VALUE, f"{param} must be {expected}", param)
    return value


def _check(messages: list[Any], kwargs: dict[str, Any]) -> None:
    if not messages:
        raise RenderFailed(Fault.INVALID_VALUE, "messages must not be empty", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            param = f"messages[{index}]"
            raise RenderFailed(Fault.INVALID_VALUE, f"{param} must be an object", param)
    for name in _RESERVED_KWARGS:
        if name in kwargs:
            param = f"chat_template_kwargs.{name}"
            raise RenderFailed(Fault.INVALID_VALUE, f"{param} cannot be set", param)


def _with_marked_end(messages: list[Any]) -> list[Any]:
    """The conversation with a mark behind the text of the last message. Raises RenderFailed."""
    *earlier, final = messages
    content = final.get("content")
    if not isinstance(content, str):
        message = "The last message has no text that could be continued"
        raise RenderFailed(Fault.INVALID_VALUE, message, "continue_final_message")
    return [*earlier, {**final, "content": content + _END_OF_FINAL}]


def _up_to_mark(rendered: Rendered) -> Rendered:
    """The prompt up to the end of the last message's text. Raises RenderFailed."""
    text = rendered.text
    place = text.rfind(_END_OF_FINAL.strip())
    if place < 0:
        message = "The chat template leaves out the last message, so it cannot be continued"
        raise RenderFailed(Fault.REFUSED, message, "continue_final_message")
    is_whole = text.startswith(_END_OF_FINAL, place)
    # A template that cuts white space off a message cuts off that before the mark as well.
    text = text[:place] if is_whole else text[:place].rstrip()
    spans = rendered.control_spans
    ends = [end for end in spans[1::2] if end <= len(text)]
    return msgspec.structs.replace(rendered, text=text, control_spans=spans[: 2 * len(ends)])


def _normalized(message: dict[str, Any]) -> dict[str, Any]:
    """A message as transformers passes it on: without null fields, reasoning under all names."""
    message = {name: value for name, value in message.items() if value is not None}
    for name in _REASONING_FIELDS:
        if name in message:
            return {"thinking": message[name], **message, "reasoning_content": message[name]}
    return message


def _pieces(text: str, spans: list[int]) -> list[str]:
    return [text[start:end] for start, end in zip(spans[::2], spans[1::2], strict=True)]
