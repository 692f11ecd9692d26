"""Typed settings from the environment: a frozen dataclass per service, read once at start.

Field `queue_wait_s: float = 5` of a class loaded with prefix `BATON_ROUTER_` comes from
`BATON_ROUTER_QUEUE_WAIT_S`. A variable with the prefix and without a field is an error: a typo in a
deployment must not go unnoticed.
"""

import dataclasses
import os
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class SettingsError(Exception):
    """A variable is unknown, missing or malformed; the message names it."""


def load(cls: type[T], prefix: str) -> T:
    """Settings of type `cls` from the process environment; exits with status 2 on an error."""
    try:
        return parse(cls, prefix, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error


def parse(cls: type[T], prefix: str, environment: Mapping[str, str]) -> T:
    """Settings of type `cls` from a mapping. Raises SettingsError."""
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    fields = {prefix + field.name.upper(): field for field in dataclasses.fields(cls)}
    for name in environment:
        if name.startswith(prefix) and name not in fields:
            raise SettingsError(f"{name}: unknown setting; known: {', '.join(sorted(fields))}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in environment:
            values[field.name] = _convert(name, environment[name], hints[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SettingsError(f"{name}: not set, and it has no default")
    try:
        return cls(**values)
    except ValueError as error:
        raise SettingsError(f"{prefix}*: {error}") from error


def to_environment(settings: object, prefix: str) -> dict[str, str]:
    """The variables that would load to `settings`; None values are left out."""
    assert dataclasses.is_dataclass(settings)
    environment = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is None:
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        environment[prefix + field.name.upper()] = text
    return environment


def _convert(name: str, text: str, hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return None if text == "" else _convert(name, text, options[0])
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise SettingsError(f"{name}: {text!r} is not one of {', '.join(map(str, choices))}")
        return text
    if typing.get_origin(hint) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if hint is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise SettingsError(f"{name}: {text!r} is neither true nor false")
        return text.lower() in _TRUE
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            kind = "an integer" if hint is int else "a number"
            raise SettingsError(f"{name}: {text!r} is not {kind}") from None
    if hint is Path:
        return Path(text)
    assert hint is str, f"{name}: settings of type {hint} are not supported"
    return text
