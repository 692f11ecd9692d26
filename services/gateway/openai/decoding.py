"""Request bodies: bytes -> one JSON object -> typed fields, or an error that names the field.

Refuses bodies that JSON parsers let pass silently: duplicate keys, lone surrogates, NaN, deep
nesting, unknown fields, and fields of features that this version does not have, unless their value
asks for nothing. Knows no endpoint; each brings its struct and its table of unsupported fields.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from baton.wire.failures import MAX_QUOTED_CHARS, InvalidRequest, did_you_mean
from baton.wire.plain_errors import AT_PATH, MISSING, UNKNOWN, rule
from services.gateway.openai.limits import MAX_JSON_DEPTH

T = TypeVar("T", bound=msgspec.Struct)

# Field of a feature that is not in this version -> values that ask for nothing. Null always does.
Unsupported = Mapping[str, tuple[Any, ...]]

_NOT_IN_ENUM = "Invalid enum value "
_SURROGATE = re.compile("[\ud800-\udfff]")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def decode_object(body: bytes) -> dict[str, Any]:
    """The body's JSON object. Raises InvalidRequest."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8 (byte {error.start})", reason="invalid_unicode"
        ) from None
    if text.startswith("\ufeff"):
        raise InvalidRequest("the body starts with a byte order mark", reason="invalid_unicode")
    value = _parse(text)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", reason="invalid_json")
    _check_tree(value, may_hold_surrogates="\\ud" in text or "\\uD" in text)
    return value


def to_struct(fields: dict[str, Any], cls: type[T], unsupported: Unsupported) -> T:
    """Typed fields of one endpoint. Raises InvalidRequest naming field, value and limit."""
    known: dict[str, Any] = {}
    for name, value in fields.items():
        if name in cls.__struct_fields__:
            known[name] = value
        elif value is None:
            continue
        elif name not in unsupported:
            hint = did_you_mean(name, cls.__struct_fields__)
            raise unsupported_field(name, f"no such parameter{hint}")
        elif not any(_same(value, ok) for ok in unsupported[name]):
            raise unsupported_field(name, f"got {described(value)}; this version does not have it")
    try:
        return msgspec.convert(known, cls)
    except msgspec.ValidationError:
        known = _with_whole_numbers(known)
    try:
        return msgspec.convert(known, cls)
    except msgspec.ValidationError as error:
        _refuse(str(error), known)


def _with_whole_numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with 1 for 1.0: to JSON it is the same number, and some languages write it so."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in fields.items()
    }


def unsupported_field(name: str, why: str) -> InvalidRequest:
    """The refusal of a field, to be raised."""
    shown = name[:MAX_QUOTED_CHARS]
    return InvalidRequest(f"{shown}: {why}", reason="unsupported_parameter", param=shown)


def described(value: object) -> str:
    """A value for an error message: itself when short, else its kind and size."""
    if isinstance(value, str) and len(value) > MAX_QUOTED_CHARS:
        return f"a string of {len(value)} characters"
    if isinstance(value, (list, dict)) and value:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**MAX_QUOTED_CHARS:
        return f"an integer of {value.bit_length()} bits"
    return json.dumps(value, ensure_ascii=False)


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at character {error.pos}",
            reason="invalid_json",
        ) from None
    except ValueError:
        raise InvalidRequest("a number has too many digits", reason="invalid_json") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        shown = _first_repeated([key for key, _ in pairs])[:MAX_QUOTED_CHARS]
        raise InvalidRequest(f"{shown}: given twice", reason="duplicate_key", param=shown)
    return fields


def _first_repeated(keys: list[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is given twice")


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not a JSON number", reason="invalid_json")


def _check_tree(root: dict[str, Any], *, may_hold_surrogates: bool) -> None:
    level: list[Any] = [root]
    for _ in range(MAX_JSON_DEPTH):
        below: list[Any] = []
        for node in level:
            items = node.values() if isinstance(node, dict) else node
            below.extend(item for item in items if type(item) is dict or type(item) is list)
            if may_hold_surrogates:
                _check_surrogates(node)
        if not below:
            return
        level = below
    raise _too_deep()


def _check_surrogates(node: Any) -> None:
    texts = [*node.keys(), *node.values()] if isinstance(node, dict) else node
    for text in texts:
        if isinstance(text, str) and _SURROGATE.search(text):
            raise InvalidRequest("a lone surrogate is not a character", reason="invalid_unicode")


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"more than {MAX_JSON_DEPTH} levels deep", reason="json_too_deep")


def _same(value: object, accepted: object) -> bool:
    # false must not pass for 0.
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _refuse(message: str, fields: dict[str, Any]) -> NoReturn:
    match = AT_PATH.search(message)
    what = message if match is None else message[: match.start()]
    path, key = ("", None) if match is None else (match["path"], match["key"])
    if missing := MISSING.match(what):
        param = f"{path}.{missing[1]}" if path else missing[1]
        raise InvalidRequest(f"{param}: required", param=param)
    if unknown := UNKNOWN.match(what):
        param = f"{path}.{unknown[1]}" if path else unknown[1]
        raise unsupported_field(param, "no such parameter")
    place = f"a key of {path}" if key else path
    raise InvalidRequest(f"{place}: {_expected(what, fields, path, key)}", param=path)


def _expected(what: str, fields: dict[str, Any], path: str, key: str | None) -> str:
    """The rest of the message about a value: what it is, as far as it is known, and may be."""
    value = "" if key or "[...]" in path else described(_value_at(fields, path))
    if what.startswith(_NOT_IN_ENUM):
        return f"got {value}; not one of the values that it may have"
    expected = rule(what)
    return f"got {value}; {expected}" if value else expected


def _value_at(fields: dict[str, Any], path: str) -> Any:
    node: Any = fields
    for index, name in _STEP.findall(path):
        node = node[int(index)] if index else node[name]
    return node
