"""The texts that stand between tags for a parameter: terms (Lark) for what its schema admits.

Text between tags is not JSON, so that the library's rules of JSON strings do not fit. A pattern is
searched for, as JSON schema has it. What cannot be enforced is refused, as the library does.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from baton.wire.failures import InvalidRequest, quoted
from services.gateway.tools.tagged_schema import MAX_DEPTH, encoded, name_in

_ANYTHING = r"(.|\n)*"
# Longer texts are more than the library counts.
_MAX_LENGTH = 1000
_NOT_ENFORCED = ("allOf", "not", "if", "contentEncoding", "contentMediaType")
_MINUTES = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_MINUTES}:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]{_MINUTES})"
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": "P([0-9]+[YMWD]|T[0-9]+[HMS]|[0-9]+DT[0-9]+[HMS]|T[0-9]+H[0-9]+M([0-9]+S)?)",
    "email": rf"[a-zA-Z0-9.!#$%&'*+=?^_`{{|}}~-]+@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "|".join(
        [f"({_GROUP}:){{7}}{_GROUP}", f"({_GROUP}:){{1,7}}:", f":(:{_GROUP}){{1,7}}", "::"]
        + [f"({_GROUP}:){{1,{7 - n}}}(:{_GROUP}){{1,{n}}}" for n in range(1, 7)]
    ),
    "uuid": "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[!#-;=?-Z_a-z~]+",
}
_INTEGER = "-?(0|[1-9][0-9]*)"
# JSON that may stand in place of a text, and is one itself.
_PLAIN: Mapping[str, str] = {
    "null": '"null"',
    "boolean": '"true" | "false"',
    "integer": f"/{_INTEGER}/",
    "number": rf"/{_INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
}
_PART = re.compile(r"\\.|[][()|]", re.DOTALL)
# A slash that is not escaped ends a regex of Lark, and so does the end of a line.
_MEANT_BY_LARK = re.compile(r"\\.|[/\n]", re.DOTALL)
_ESCAPED = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
_ESCAPED_END = re.compile(r"(?<!\\)(\\\\)*\\\$$")


class Forms(NamedTuple):
    """The forms of one value: terms of its text, and schemas of JSON."""

    terms: tuple[str, ...] = ()
    schemas: tuple[dict[str, Any], ...] = ()


def forms_of(schema: Any) -> Forms | None:
    """The forms that a schema admits; None: any text. Raises InvalidRequest for a schema whose
    texts cannot be enforced."""
    if not isinstance(schema, dict):
        return None
    return _Reader(schema).forms(schema, 0)


class _Reader:
    """Reads one schema. Each of its definitions is read once, however often others name it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        definitions = schema.get("$defs")
        self._definitions = definitions if isinstance(definitions, dict) else {}
        self._shared = {name: schema[name] for name in ("$defs", "x-guidance") if name in schema}
        self._known: dict[str, Forms | None] = {}

    def forms(self, schema: Any, depth: int) -> Forms | None:
        """The forms of a part of the schema; None: any text."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        if (name := name_in(schema)) in self._definitions:
            if name not in self._known:
                # A definition that names itself admits any.
                self._known[name] = None
                self._known[name] = self.forms(self._definitions[name], depth + 1)
            return self._known[name]
        schema = {**self._shared, **schema}
        if "const" in schema:
            return Forms((_literal(schema["const"]),))
        if isinstance(schema.get("enum"), list):
            return Forms(tuple(map(_literal, schema["enum"])))
        types = schema.get("type")
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(types, list):
            branches = [{**schema, "type": each} for each in types]
        if isinstance(branches, list):
            return self._forms_of_any(branches, schema, depth)
        if types == "string":
            text = _text(schema)
            return None if text is None else Forms((text,))
        return Forms((), (schema,)) if isinstance(types, str) else None

    def _forms_of_any(
        self, branches: list[Any], schema: dict[str, Any], depth: int
    ) -> Forms | None:
        terms: dict[str, None] = {}
        schemas: dict[int, dict[str, Any]] = {}
        for branch in branches:
            forms = self.forms(branch, depth + 1)
            if forms is None:
                return None
            terms |= dict.fromkeys(forms.terms)
            schemas |= {id(each): each for each in forms.schemas}
        if not terms:
            return Forms((), (schema,)) if schemas else Forms()
        plain = [_PLAIN[each["type"]] for each in schemas.values() if each["type"] in _PLAIN]
        others = [each for each in schemas.values() if each["type"] not in _PLAIN]
        return Forms(tuple(terms | dict.fromkeys(plain)), tuple(others))


def _text(schema: dict[str, Any]) -> str | None:
    """The term of a string's text; None: any."""
    guidance = schema.get("x-guidance")
    if not (isinstance(guidance, dict) and guidance.get("lenient")):
        _check(schema)
    parts = []
    if isinstance(pattern := schema.get("pattern"), str):
        parts.append(f"/{_searched(pattern)}/")
    if regex := _FORMATS.get(str(schema.get("format"))):
        parts.append(f"/{regex}/")
    least, most = _length(schema, "minLength"), _length(schema, "maxLength")
    if least is not None or most is not None:
        parts.append(rf"/(.|\n){{{least or 0},{'' if most is None else most}}}/")
    return " & ".join(parts) or None


def _length(schema: dict[str, Any], name: str) -> int | None:
    length = schema.get(name)
    return length if isinstance(length, int) and 0 <= length <= _MAX_LENGTH else None


def _check(schema: dict[str, Any]) -> None:
    """Raise InvalidRequest for what cannot be enforced of a text."""
    for name in _NOT_ENFORCED:
        if name in schema:
            raise _refusal(name)
    if "format" in schema and schema["format"] not in _FORMATS:
        raise _refusal(f"format {quoted(str(schema['format']))}")
    for name in ("minLength", "maxLength"):
        if name in schema and _length(schema, name) is None:
            raise _refusal(f"{name} {quoted(str(schema[name]))}")


def _refusal(what: str) -> InvalidRequest:
    message = (
        f"tools: {what} of a string cannot be enforced in the way in which this model writes "
        'calls; leave it out, or put "x-guidance": {"lenient": true} beside it'
    )
    return InvalidRequest(message, param="tools")


def _searched(pattern: str) -> str:
    """A pattern that may stand anywhere in a text, but for the ends that it anchors."""
    found = []
    for branch in _branches(pattern):
        begin, inner = "" if branch.startswith("^") else _ANYTHING, branch.removeprefix("^")
        if branch.endswith("$") and not _ESCAPED_END.search(branch):
            found.append(f"{begin}({inner[:-1]})")
        else:
            found.append(f"{begin}({inner}){_ANYTHING}")
    return _MEANT_BY_LARK.sub(lambda match: _ESCAPED.get(match[0], match[0]), "|".join(found))


def _branches(pattern: str) -> Iterator[str]:
    """The alternatives of a pattern."""
    depth, start, is_class = 0, 0, False
    for match in _PART.finditer(pattern):
        part = match[0]
        if is_class:
            is_class = part != "]"
        elif part == "[":
            is_class = True
        elif part == "|" and not depth:
            yield pattern[start : match.start()]
            start = match.end()
        else:
            depth += (part == "(") - (part == ")")
    yield pattern[start:]


def _literal(value: Any) -> str:
    return encoded(value if isinstance(value, str) else encoded(value))
