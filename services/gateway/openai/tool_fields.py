"""Tools of chat completions: the functions of a request, and the calls in its messages."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from baton.wire.failures import InvalidRequest
from baton.wire.limits import MAX_GRAMMAR_CHARS
from services.gateway.openai import limits
from services.gateway.openai.decoding import described, unsupported_field
from services.gateway.openai.generation import Function, Tools

MAX_TOOLS = 128
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionFields(msgspec.Struct, forbid_unknown_fields=True):
    """A function as a request declares it."""

    name: FunctionName
    description: limits.Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


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
    tools: list[NamedTool]


class ToolChoiceFields(msgspec.Struct, forbid_unknown_fields=True):
    """A choice that names tools: one of them, or those that may be called."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolList = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | ToolChoiceFields


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: limits.Label
    arguments: limits.Text = ""


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in an earlier answer, which the client sends back. `index` is of streams."""

    id: limits.UserId
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


def tools_of(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, *, is_parallel: bool
) -> Tools | None:
    """The functions that the model may call; None when it must call none. Raises
    InvalidRequest."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: only with tools", param="tool_choice")
        return None
    functions = _functions(tools)
    if choice == "none":
        return None
    made = Tools(msgspec.json.encode(tools), tuple(functions.values()), is_parallel=is_parallel)
    if isinstance(choice, ToolChoiceFields):
        return _chosen(made, functions, choice)
    return msgspec.structs.replace(made, is_required=choice == "required")


def turn_of_call(call: ToolCall, place: str) -> dict[str, Any]:
    """A call of an earlier answer as chat templates read it: with its arguments as an object.
    Raises InvalidRequest."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        param = f"{place}.function.arguments"
        raise InvalidRequest(f"{param}: expected a JSON object", param=param) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _functions(tools: Sequence[Tool]) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    num_chars = 0
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            raise unsupported_field(f"{place}.type", f"got {described(tool.type)}")
        if tool.function is None:
            raise InvalidRequest(f"{place}.function: required", param=f"{place}.function")
        own = tool.function
        if own.name in functions:
            param = f"{place}.function.name"
            raise InvalidRequest(f"{param}: {own.name} is declared twice", param=param)
        parameters = "" if own.parameters is None else msgspec.json.encode(own.parameters).decode()
        num_chars += len(parameters)
        functions[own.name] = Function(own.name, parameters, bool(own.strict))
    if num_chars > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"tools: got {num_chars} characters of parameters; expected at most "
            f"{MAX_GRAMMAR_CHARS}",
            param="tools",
        )
    return functions


def _chosen(made: Tools, functions: dict[str, Function], choice: ToolChoiceFields) -> Tools:
    """The tools with a choice that names some of them."""
    if choice.type == "function":
        if choice.function is None:
            param = "tool_choice.function"
            raise InvalidRequest(f"{param}: required", param=param)
        only = (_declared(choice.function, functions, "tool_choice.function.name"),)
        return msgspec.structs.replace(
            made, functions=only, is_required=True, is_named=True, is_parallel=False
        )
    if choice.allowed_tools is None or not choice.allowed_tools.tools:
        param = "tool_choice.allowed_tools.tools"
        raise InvalidRequest(f"{param}: expected one tool or more", param=param)
    allowed = tuple(
        _declared(each.function, functions, f"tool_choice.allowed_tools.tools[{index}]")
        for index, each in enumerate(choice.allowed_tools.tools)
    )
    is_required = choice.allowed_tools.mode == "required"
    return msgspec.structs.replace(made, functions=allowed, is_required=is_required)


def _declared(named: NamedFunction, functions: dict[str, Function], param: str) -> Function:
    function = functions.get(named.name)
    if function is None:
        got = described(named.name)
        raise InvalidRequest(f"{param}: got {got}, which tools does not declare", param=param)
    return function
