"""The table of caps that ends docs/api.md, from the schemas of /openapi.json: one row for each cap,
with all the requests whose field has it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from services.gateway.openapi.document import document

Schema = dict[str, Any]
# As the page writes them; others by their paths.
_LETTERS = {"/v1/chat/completions": "C", "/v1/completions": "L", "/v1/responses": "R"}
# The same body as another path's.
_ALIKE = ("/v1/responses/input_tokens", "/v2/rerank", "/v1/messages/count_tokens")
# The items of conversations are those of `input`.
_REPEATED = "items[]"
# A text as long as a body may be.
_WHOLE_BODY = "up to 8,388,608 characters"
_POWERS = {2**power: f"2^{power}" for power in (31, 32, 63)}
_REFERENCE = "#/components/schemas/"


def caps() -> Iterator[str]:
    """The lines of the table, with its heading."""
    yield "## All caps"
    yield ""
    yield "A field without a row has no cap but the body's, which is 8 MiB by default."
    yield ""
    yield "| Field | Requests | Cap |"
    yield "|---|---|---|"
    for (field, cap), requests in sorted(found().items()):
        letters = "".join(each for each in requests if len(each) == 1)
        others = [f"`{each}`" for each in requests if len(each) > 1]
        told = ", ".join([letters, *others] if letters else others)
        yield f"| `{field}` | {told} | {cap} |"


def found() -> dict[tuple[str, str], list[str]]:
    """The requests of each field and cap."""
    described = json.loads(document(has_store=True))
    schemas = described["components"]["schemas"]
    told: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path, methods in described["paths"].items():
        body = methods.get("post", {}).get("requestBody")
        if body is None or path in _ALIKE:
            continue
        (content,) = body["content"].values()
        name = _LETTERS.get(path, path)
        for field, cap in dict.fromkeys(_Walk(schemas).rows("", content["schema"])):
            if not field.startswith(_REPEATED) and cap != _WHOLE_BODY:
                told[field, cap].append(name)
    return told


class _Walk:
    """Goes through a schema; knows what it is inside of, because some contain themselves."""

    def __init__(self, schemas: dict[str, Schema]) -> None:
        self._schemas = schemas
        self._inside: list[str] = []

    def rows(self, field: str, schema: Schema) -> Iterator[tuple[str, str]]:
        """Each field below this one with its cap."""
        if reference := schema.get("$ref"):
            name = reference.removeprefix(_REFERENCE)
            if name not in self._inside:
                self._inside.append(name)
                yield from self.rows(field, self._schemas[name])
                self._inside.pop()
            return
        if cap := _cap_of(schema):
            yield field, cap
        for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            yield from self.rows(field, each)
        for name, each in schema.get("properties", {}).items():
            yield from self.rows(f"{field}.{name}" if field else name, each)
        for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(schema.get(key), dict):
                yield from self.rows(field + mark, schema[key])


def _cap_of(schema: Schema) -> str:
    """What a schema allows; empty without a bound."""
    if "enum" in schema or "const" in schema:
        values = [value for value in schema.get("enum", ()) if value]
        is_choice = len(values) > 1 and all(isinstance(value, str) for value in values)
        return ", ".join(f"`{value}`" for value in values) if is_choice else ""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None or "exclusiveMinimum" in schema:
        first = f"above {schema['exclusiveMinimum']}" if low is None else _number(low)
        return f"{first} to {_number(high)}" if high is not None else f"{first} and more"
    for kind, unit in (("Length", "characters"), ("Items", "entries"), ("Properties", "entries")):
        least, most = schema.get(f"min{kind}", 0), schema.get(f"max{kind}")
        if most is not None:
            return f"{least:,} to {most:,} {unit}" if least else f"up to {most:,} {unit}"
    return ""


def _number(value: float) -> str:
    """A number; bounds of machine words as powers of two."""
    for power, text in _POWERS.items():
        for bound, shown in ((power, text), (power - 1, f"{text} - 1"), (-power, f"-{text}")):
            if value == bound:
                return shown
    return f"{value:,}"
