"""The jinja2 sandbox of chat templates, with the language that transformers gives them.

Options, extensions, filters and globals follow `transformers.utils.chat_template_utils` (5.23), so
that a model's template renders the same bytes. Without a loader, include, import and extends have
nothing to read. Knows nothing of messages.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

READING_NODES = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class RefusedByTemplate(jinja2.TemplateError):
    """The template called raise_exception."""


def create_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """A fresh sandbox; `now` is the local time that strftime_now formats."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment


def literals(tree: nodes.Template) -> Iterator[str]:
    """Every literal text of a template: its plain text and its string constants."""
    for data in tree.find_all(nodes.TemplateData):
        yield data.data
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            yield constant.value


def attribute_names(tree: nodes.Template) -> Iterator[str]:
    """The names that a template reads with a dot, and those of its variables."""
    for attribute in tree.find_all(nodes.Getattr):
        yield attribute.attr
    for variable in tree.find_all(nodes.Name):
        yield variable.name


class _GenerationBlock(Extension):
    """`{% generation %}`, which marks the assistant's words for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = nodes.CallBlock(self.call_method("_render_body"), [], [], body)
        return call.set_lineno(line)

    def _render_body(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: object) -> NoReturn:
    raise RefusedByTemplate(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _TemplateDict:
    """`dict` for templates, without the class's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace` without names that reach into Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # As jinja2 does it, so that `namespace(self=...)` works.
        self, values = args[0], args[1:]
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _refuse_internal(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_internal(name)
        Namespace.__setitem__(self, name, value)


def _refuse_internal(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace cannot hold names that start with an underscore")
