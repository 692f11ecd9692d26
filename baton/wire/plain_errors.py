"""msgspec's messages about a value, as sentences for its author: "tenant: must be ...".

Its own name a type of Python, a regular expression and a place like `$.limits`.
"""

import re
from collections.abc import Callable, Mapping

# The end of a message; before it the client may be quoted.
AT_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_BOUND = re.compile(r"Expected `(?:int|float)` (?P<operator>[<>]=?) (?P<limit>\S+)$")
_LENGTH = re.compile(r"Expected `(?P<kind>\w+)` of length (?P<operator>[<>]=?) (?P<limit>\d+)$")
_PATTERN = re.compile(r"Expected `str` matching regex (?P<quoted>'.*')$", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]+)`(?:, got `(?P<given>[^`]+)`)?$")
MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`$")
UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)


def plain(message: str, rules: Mapping[str, str] | None = None) -> str:
    """One line that names the place and the rule. `rules` has words for regular expressions."""
    at = AT_PATH.search(message)
    path = at["path"] if at else ""
    if at and at["key"]:
        path = f"a key of {path}"
    what = message[: at.start()] if at else message
    for pattern in (MISSING, UNKNOWN):
        if found := pattern.match(what):
            place = ".".join(filter(None, (path, found["name"])))
            return f"{place}: {'required' if pattern is MISSING else 'there is no such field'}"
    return f"{path}: {rule(what, rules)}" if path else rule(what, rules)


def rule(what: str, rules: Mapping[str, str] | None = None) -> str:
    """The rule that a value broke, without its place: "must be 2.0 or less"."""
    translations: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
        (_BOUND, lambda found: f"must be {_bound(found)}"),
        (_LENGTH, lambda found: f"must have {_bound(found)} {_counted(found['kind'])}"),
        (_PATTERN, lambda found: f"must be {_worded(found['quoted'], rules or {})}"),
        (_WRONG_TYPE, _wrong_type),
    )
    for pattern, said in translations:
        if found := pattern.match(what):
            return said(found)
    return what[:1].lower() + what[1:].replace("`", "")


def _bound(found: re.Match[str]) -> str:
    return f"{_BOUNDS[found['operator']]} {found['limit']}"


def _counted(kind: str) -> str:
    return "characters" if kind == "str" else "entries"


def _worded(quoted: str, rules: Mapping[str, str]) -> str:
    by_quoted = {repr(pattern): words for pattern, words in rules.items()}
    return by_quoted.get(quoted, "of another form")


def _wrong_type(found: re.Match[str]) -> str:
    wanted = [_TYPES.get(name, name) for name in found["wanted"].split(" | ")]
    given = _TYPES.get(found["given"] or "", found["given"])
    return f"must be {' or '.join(wanted)}" + (f", not {given}" if given else "")
