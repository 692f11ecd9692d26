"""Functions that a request declares and chooses, whatever the shape of its endpoint."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from baton.wire.failures import InvalidRequest
from baton.wire.limits import MAX_GRAMMAR_CHARS
from services.gateway.openai import limits
from services.gateway.openai.decoding import described
from services.gateway.openai.generation import Function, Tools

MAX_TOOLS = 128
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionFields(msgspec.Struct, forbid_unknown_fields=True):
    """A function as a request declares it."""

    name: FunctionName
    description: limits.Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Declared(NamedTuple):
    """A function, the place in the request at which it stands, and its field of the schema."""

    place: str
    function: FunctionFields
    schema_field: str = "parameters"


class Named(NamedTuple):
    """A function that a choice names, and the field that does."""

    param: str
    name: str


class Choice(NamedTuple):
    """The calls that may or must be made. `named`: of these functions only, if there are any."""

    is_none: bool = False
    is_required: bool = False
    named: tuple[Named, ...] = ()
    # One call, of the one function that is named.
    is_single: bool = False


def tools_of(declared: Sequence[Declared], choice: Choice, *, is_parallel: bool) -> Tools | None:
    """The functions that the model may call; None when it must call none. Raises
    InvalidRequest."""
    if not declared:
        if choice.is_required or choice.named:
            raise InvalidRequest("tool_choice: only with tools", param="tool_choice")
        return None
    functions: dict[str, Function] = {}
    for place, own, schema_field in declared:
        if own.name in functions:
            raise InvalidRequest(
                f"{place}.name: {own.name} is declared twice", param=f"{place}.name"
            )
        _check_schema(own.parameters or {}, f"{place}.{schema_field}")
        parameters = "" if own.parameters is None else msgspec.json.encode(own.parameters).decode()
        functions[own.name] = Function(own.name, parameters, bool(own.strict))
    num_chars = sum(len(each.parameters_json) for each in functions.values())
    if num_chars > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"tools: got {num_chars} characters of parameters; expected at most "
            f"{MAX_GRAMMAR_CHARS}",
            param="tools",
        )
    if choice.is_none:
        return None
    chosen = tuple(_declared(each, functions) for each in choice.named)
    return Tools(
        msgspec.json.encode([_for_template(each.function) for each in declared]),
        chosen or tuple(functions.values()),
        is_required=choice.is_required,
        is_named=choice.is_single,
        is_parallel=is_parallel and not choice.is_single,
    )


def call_turn(call_id: str, name: str, arguments: str, param: str) -> dict[str, Any]:
    """A call of an earlier answer as chat templates read it: with its arguments as an object.
    `param`: the field of the arguments. Raises InvalidRequest."""
    try:
        decoded = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"{param}: expected a JSON object", param=param) from None
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": decoded}}


def _check_schema(schema: dict[str, Any], param: str) -> None:
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"{param}: expected the schema of an object", param=param)
    if not isinstance(schema.get("x-guidance", {}), dict):
        raise InvalidRequest(f"{param}: x-guidance must be a JSON object", param=param)


def _for_template(function: FunctionFields) -> dict[str, Any]:
    """A function as chat templates read it."""
    known = {"name": function.name, "description": function.description}
    shown = {name: value for name, value in known.items() if value is not None}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**shown, "parameters": parameters}}


def _declared(named: Named, functions: dict[str, Function]) -> Function:
    function = functions.get(named.name)
    if function is None:
        got = described(named.name)
        raise InvalidRequest(
            f"{named.param}: got {got}, which tools does not declare", param=named.param
        )
    return function
