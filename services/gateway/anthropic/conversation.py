"""The messages of Anthropic's API as turns that chat templates read.

A message's content is text, or blocks: text, and images and documents, which are refused. Blocks of
the assistant are also thoughts and calls of tools, those of the user also the results of calls,
which become turns of their own in front of the user's text. Neighbours of one role are one turn.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai import limits
from services.gateway.openai.decoding import described
from services.gateway.openai.response_tools import typed

Content = limits.Text | list[dict[str, Any]]
Turn = dict[str, Any]


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: Content


class TextBlock(msgspec.Struct, forbid_unknown_fields=True):
    text: limits.Text
    type: str = ""
    # Accepted, without effect, as in the other blocks.
    cache_control: Any = None
    citations: Any = None


class ThinkingBlock(msgspec.Struct, forbid_unknown_fields=True):
    """Thoughts of an earlier answer; templates decide whether the model sees them again."""

    thinking: limits.Text
    type: str = ""
    signature: limits.Text | None = None
    cache_control: Any = None


class ToolUseBlock(msgspec.Struct, forbid_unknown_fields=True):
    """A call in an earlier answer, which the client sends back."""

    id: limits.UserId
    name: limits.UserId
    input: dict[str, Any]
    type: str = ""
    cache_control: Any = None
    caller: Any = None
    toolset_name: Any = None


class ToolResultBlock(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a call. `is_error` is accepted: the text tells the model what failed."""

    tool_use_id: limits.UserId
    content: Content | None = None
    type: str = ""
    is_error: bool | None = None
    cache_control: Any = None
    toolset_name: Any = None


def conversation(system: Content | None, messages: list[dict[str, Any]]) -> list[Turn]:
    """The turns of a request. Raises InvalidRequest."""
    if not 1 <= len(messages) <= limits.MAX_MESSAGES:
        raise InvalidRequest(
            f"messages: got {len(messages)} messages; expected 1 to {limits.MAX_MESSAGES}",
            param="messages",
        )
    text = text_of(system, "system")
    turns: list[Turn] = [{"role": "system", "content": text}] if text else []
    for index, message in enumerate(messages):
        for turn in _turns(message, f"messages[{index}]"):
            _add(turns, turn)
    return turns


def text_of(content: Content | None, place: str) -> str:
    """The text of content that has nothing else; blocks are joined by newlines. Raises
    InvalidRequest."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(
        _text_block(block, where, ("text",)).text for where, block in _blocks(content, place)
    )


def continues_final(turns: list[Turn]) -> bool:
    """True when the answer goes on with the last turn, which the client began."""
    return turns[-1]["role"] == "assistant" and "tool_calls" not in turns[-1]


def _add(turns: list[Turn], turn: Turn) -> None:
    """Add a turn; texts of one role behind each other are one turn."""
    last = turns[-1] if turns else {}
    if last.keys() == turn.keys() == {"role", "content"} and last["role"] == turn["role"]:
        last["content"] += "\n" + turn["content"]
    else:
        turns.append(turn)


def _turns(raw: dict[str, Any], place: str) -> Iterator[Turn]:
    message, place = typed(raw, Message, place), f"{place}.content"
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
    elif message.role == "assistant":
        yield _answer(message.content, place)
    elif message.role == "user":
        yield from _question(message.content, place)
    else:
        yield {"role": "system", "content": text_of(message.content, place)}


def _answer(content: list[dict[str, Any]], place: str) -> Turn:
    """An earlier answer, or its beginning: text, thoughts and calls."""
    texts, thoughts, calls = [], [], []
    for where, block in _blocks(content, place):
        match block.get("type"):
            case "thinking":
                thoughts.append(typed(block, ThinkingBlock, where).thinking)
            case "redacted_thinking":
                # Nothing in it can be read.
                continue
            case "tool_use":
                calls.append(_call(typed(block, ToolUseBlock, where)))
            case _:
                kinds = ("text", "thinking", "redacted_thinking", "tool_use")
                texts.append(_text_block(block, where, kinds).text)
    turn: Turn = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        turn["tool_calls"] = calls
    if any(thoughts):
        turn["reasoning_content"] = "\n".join(thoughts)
    return turn


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.input}
    return {"id": block.id, "type": "function", "function": function}


def _question(content: list[dict[str, Any]], place: str) -> Iterator[Turn]:
    """Results of calls, each a turn of its own, and what the user says to them."""
    if not content:
        raise InvalidRequest(f"{place}: expected one block or more", param=place)
    texts = []
    for where, block in _blocks(content, place):
        if block.get("type") == "tool_result":
            result = typed(block, ToolResultBlock, where)
            text = text_of(result.content, f"{where}.content")
            yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": text}
        else:
            texts.append(_text_block(block, where, ("text", "tool_result")).text)
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _blocks(content: list[dict[str, Any]], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if len(content) > limits.MAX_PARTS:
        raise InvalidRequest(
            f"{place}: got {len(content)} blocks; expected at most {limits.MAX_PARTS}", param=place
        )
    return ((f"{place}[{index}]", block) for index, block in enumerate(content))


def _text_block(block: dict[str, Any], place: str, kinds: tuple[str, ...]) -> TextBlock:
    """A block of text. `kinds`: those that may stand here, for the message of the refusal."""
    kind = block.get("type")
    if kind != "text":
        param = f"{place}.type"
        raise InvalidRequest(
            f"{param}: got {described(kind)}; this version takes {', '.join(kinds)} here",
            reason="unsupported_content",
            param=param,
        )
    return typed(block, TextBlock, place)
