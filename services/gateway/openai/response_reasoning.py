"""Reasoning in the request of a response: its settings, and that of earlier answers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from services.gateway.openai import limits
from services.gateway.openai.response_tools import typed

Summary = Literal["auto", "concise", "detailed"]


class ReasoningFields(msgspec.Struct, forbid_unknown_fields=True):
    """The settings. The effort reaches the chat template; the others are accepted without effect:
    reasoning comes as it was written."""

    effort: limits.ReasoningEffort | None = None
    summary: Summary | None = None
    # The old name of summary.
    generate_summary: Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: limits.Label | None = None


class ReasoningPart(msgspec.Struct, forbid_unknown_fields=True):
    text: limits.Text
    type: limits.Label = "reasoning_text"


PartList = Annotated[list[ReasoningPart], Meta(max_length=limits.MAX_PARTS)]


class ReasoningItem(msgspec.Struct, forbid_unknown_fields=True):
    """Reasoning of an earlier answer, which the client sends back. Only its content is read: what
    is encrypted comes from another server."""

    type: str
    id: limits.UserId | None = None
    summary: PartList | None = None
    content: PartList | None = None
    encrypted_content: limits.Text | None = None
    status: limits.Label | None = None


def repeated(fields: ReasoningFields) -> dict[str, Any]:
    """The settings as a response repeats them."""
    return {"effort": fields.effort, "summary": fields.summary or fields.generate_summary}


def add_turn(turns: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    """Begin an answer in the conversation with its reasoning. Raises InvalidRequest."""
    parts = typed(item, ReasoningItem, place).content or ()
    text = "\n".join(part.text for part in parts)
    if text:
        turns.append({"role": "assistant", "content": "", "reasoning_content": text})


def is_alone(turn: dict[str, Any]) -> bool:
    """True for an answer of which only the reasoning is there yet."""
    return "reasoning_content" in turn and not turn["content"] and "tool_calls" not in turn
