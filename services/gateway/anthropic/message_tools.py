"""Tools of Anthropic's API: the functions of a request, and how they may be called."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from baton.wire.failures import InvalidRequest
from services.gateway.openai import limits, tool_fields
from services.gateway.openai.decoding import described, unsupported_field
from services.gateway.openai.generation import Tools
from services.gateway.openai.response_tools import typed
from services.gateway.openai.tool_fields import Choice, Declared, FunctionFields, Named

# Longer than OpenAI's.
ToolName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,128}$")]
ToolList = Annotated[list[dict[str, Any]], Meta(max_length=tool_fields.MAX_TOOLS)]


class MessageTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the client; those below `strict` are accepted, without effect."""

    name: ToolName
    input_schema: dict[str, Any]
    type: Literal["custom"] = "custom"
    description: limits.Text | None = None
    strict: bool | None = None
    cache_control: Any = None
    allowed_callers: Any = None
    defer_loading: Any = None
    eager_input_streaming: Any = None
    input_examples: Any = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


def tools_of(tools: list[dict[str, Any]] | None, choice: ToolChoice | None) -> Tools | None:
    """The functions that the model may call; None when it must call none. Raises
    InvalidRequest."""
    if tools is None and choice is None:
        return None
    declared = [_declared(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    is_parallel = choice is None or not choice.disable_parallel_tool_use
    return tool_fields.tools_of(declared, _choice(choice), is_parallel=is_parallel)


def _declared(raw: dict[str, Any], place: str) -> Declared:
    if (kind := raw.get("type")) not in (None, "custom"):
        why = f"got {described(kind)}; this version has no tools of its own, only the client's"
        raise unsupported_field(f"{place}.type", why)
    known = {name: value for name, value in raw.items() if name != "type"}
    tool = typed(known, MessageTool, place)
    fields = FunctionFields(tool.name, tool.description, tool.input_schema, tool.strict)
    return Declared(place, fields, "input_schema")


def _choice(choice: ToolChoice | None) -> Choice:
    if choice is None or choice.type != "tool":
        kind = None if choice is None else choice.type
        return Choice(is_none=kind == "none", is_required=kind == "any")
    if choice.name is None:
        raise InvalidRequest("tool_choice.name: required", param="tool_choice.name")
    only = Named("tool_choice.name", choice.name)
    return Choice(is_required=True, named=(only,), is_single=True)
