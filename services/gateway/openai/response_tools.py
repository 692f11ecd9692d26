"""Tools of responses: the functions of a request, and the calls and results in its input."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from baton.wire.failures import InvalidRequest
from services.gateway.openai import limits, tool_fields
from services.gateway.openai.decoding import T, described, to_struct, unsupported_field
from services.gateway.openai.generation import Tools
from services.gateway.openai.tool_fields import Choice, Declared, FunctionFields, Named


class ResponseTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool; responses have the function's fields beside its type."""

    type: limits.Label
    name: tool_fields.FunctionName | None = None
    description: limits.Text | None = None
    parameters: dict[str, Any] | None = None
    # As OpenAI has it: enforced unless the client says otherwise.
    strict: bool | None = None


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    name: limits.Label


class ResponseToolChoice(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A choice that names tools: one of them, or those that may be called."""

    type: Literal["function", "allowed_tools"]
    name: limits.Label | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] = []


ToolList = Annotated[list[ResponseTool], Meta(max_length=tool_fields.MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | ResponseToolChoice


class CallItem(msgspec.Struct, forbid_unknown_fields=True):
    """A call of an earlier answer, which the client sends back."""

    call_id: limits.UserId
    name: limits.Label
    arguments: limits.Text = ""
    type: str = ""
    id: limits.UserId | None = None
    status: limits.Label | None = None


class ResultItem(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a call."""

    call_id: limits.UserId
    output: limits.Text | limits.Parts
    type: str = ""
    id: limits.UserId | None = None
    status: limits.Label | None = None


def tools_of(
    tools: list[ResponseTool] | None, choice: ToolChoice | None, *, is_parallel: bool
) -> Tools | None:
    """The functions that the model may call; None when it must call none. Raises
    InvalidRequest."""
    declared = [_declared(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    return tool_fields.tools_of(declared, _choice(choice), is_parallel=is_parallel)


def repeated(tools: list[ResponseTool] | None) -> list[dict[str, Any]]:
    """The tools as a response repeats them."""
    return [
        {**msgspec.to_builtins(tool), "strict": tool.strict is not False} for tool in tools or ()
    ]


def call_of(item: dict[str, Any], place: str) -> dict[str, Any]:
    """A call in the input as chat templates read it. Raises InvalidRequest."""
    call = typed(item, CallItem, place)
    return tool_fields.call_turn(call.call_id, call.name, call.arguments, f"{place}.arguments")


def result_of(item: dict[str, Any], place: str) -> ResultItem:
    """A result in the input. Raises InvalidRequest."""
    return typed(item, ResultItem, place)


def typed(item: dict[str, Any], kind: type[T], place: str) -> T:
    """An item in the input with its fields. Raises InvalidRequest."""
    try:
        return to_struct(item, kind, {})
    except InvalidRequest as error:
        param = f"{place}.{error.param}"
        raise InvalidRequest(f"{place}.{error.message}", reason=error.reason, param=param) from None


def _declared(tool: ResponseTool, place: str) -> Declared:
    if tool.type != "function":
        raise unsupported_field(f"{place}.type", f"got {described(tool.type)}")
    if tool.name is None:
        raise InvalidRequest(f"{place}.name: required", param=f"{place}.name")
    is_strict = tool.strict is not False
    return Declared(place, FunctionFields(tool.name, tool.description, tool.parameters, is_strict))


def _choice(choice: ToolChoice | None) -> Choice:
    if not isinstance(choice, ResponseToolChoice):
        return Choice(is_none=choice == "none", is_required=choice == "required")
    if choice.type == "function":
        if choice.name is None:
            raise InvalidRequest("tool_choice.name: required", param="tool_choice.name")
        only = Named("tool_choice.name", choice.name)
        return Choice(is_required=True, named=(only,), is_single=True)
    if not choice.tools:
        param = "tool_choice.tools"
        raise InvalidRequest(f"{param}: expected one tool or more", param=param)
    named = tuple(
        Named(f"tool_choice.tools[{index}]", each.name) for index, each in enumerate(choice.tools)
    )
    return Choice(is_required=choice.mode == "required", named=named)
