"""Tools of chat completions: the functions of a request, and the calls in its messages."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from baton.wire.failures import InvalidRequest
from services.gateway.openai import limits, tool_fields
from services.gateway.openai.decoding import described, unsupported_field
from services.gateway.openai.generation import Tools
from services.gateway.openai.tool_fields import Choice, Declared, FunctionFields, Named


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: limits.Label
    function: FunctionFields | None = None


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: limits.Label


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]


class ToolChoiceFields(msgspec.Struct, forbid_unknown_fields=True):
    """A choice that names tools: one of them, or those that may be called."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolList = Annotated[list[Tool], Meta(max_length=tool_fields.MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | ToolChoiceFields


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function of a call. `parsed_arguments` is added by OpenAI's client."""

    name: limits.Label
    arguments: limits.Text = ""
    parsed_arguments: Any = None


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in an earlier answer, which the client sends back. `index` is of streams, the last
    field is LiteLLM's."""

    id: limits.UserId
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None
    provider_specific_fields: Any = None


def tools_of(
    tools: list[Tool] | None, choice: ToolChoice | None, *, is_parallel: bool
) -> Tools | None:
    """The functions that the model may call; None when it must call none. Raises
    InvalidRequest."""
    declared = [_declared(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    return tool_fields.tools_of(declared, _choice(choice), is_parallel=is_parallel)


def turn_of_call(call: ToolCall, place: str) -> dict[str, Any]:
    """A call of an earlier answer as chat templates read it. Raises InvalidRequest."""
    function, param = call.function, f"{place}.function.arguments"
    return tool_fields.call_turn(call.id, function.name, function.arguments, param)


def _declared(tool: Tool, place: str) -> Declared:
    if tool.type != "function":
        raise unsupported_field(f"{place}.type", f"got {described(tool.type)}")
    if tool.function is None:
        raise InvalidRequest(f"{place}.function: required", param=f"{place}.function")
    return Declared(f"{place}.function", tool.function)


def _choice(choice: ToolChoice | None) -> Choice:
    if not isinstance(choice, ToolChoiceFields):
        return Choice(is_none=choice == "none", is_required=choice == "required")
    if choice.type == "function":
        if choice.function is None:
            param = "tool_choice.function"
            raise InvalidRequest(f"{param}: required", param=param)
        only = Named("tool_choice.function.name", choice.function.name)
        return Choice(is_required=True, named=(only,), is_single=True)
    allowed = choice.allowed_tools
    if allowed is None:
        param = "tool_choice.allowed_tools"
        raise InvalidRequest(f"{param}: required", param=param)
    named = tuple(
        Named(f"tool_choice.allowed_tools.tools[{index}]", each.function.name)
        for index, each in enumerate(allowed.tools)
    )
    return Choice(is_required=allowed.mode == "required", named=named)
