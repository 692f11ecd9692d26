"""The OpenAPI document of this gateway, from its operations and their schemas."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from baton.wire.failures import REASONS, BatonError
from services.gateway.anthropic.errors import ANTHROPIC
from services.gateway.http import request as http_request
from services.gateway.http.stored_responses import MAX_LIMIT
from services.gateway.openai.errors import OPENAI, Dialect
from services.gateway.openapi.answers import Error, MessageError
from services.gateway.openapi.operations import OPERATIONS, STORE_OPERATIONS, Operation
from services.gateway.openapi.schemas import reference_to, schemas_of

_JSON, _EVENTS, _FORM = http_request.JSON, "text/event-stream", "multipart/form-data"
_NUMBER = {"type": "number", "minimum": 0}
_HEADERS: dict[str, Any] = {
    http_request.TOTAL_HEADER: _NUMBER,
    http_request.FIRST_TOKEN_HEADER: _NUMBER,
    http_request.TOKEN_GAP_HEADER: _NUMBER,
    http_request.EXPLAIN_HEADER: {"enum": ["0", "1"]},
    http_request.IDEMPOTENCY_HEADER: {"type": "string", "pattern": "^[!-~]{1,255}$"},
}
_QUERY: dict[str, Any] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    "order": {"enum": ["asc", "desc"]},
    "after": {"type": "string"},
    "purpose": {"type": "string"},
    "stream": {"type": "boolean"},
    "starting_after": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
}
_ERRORS: dict[Dialect, type[msgspec.Struct]] = {OPENAI: Error, ANTHROPIC: MessageError}
# Errors of a connection: any request may meet them.
_OF_ANY_REQUEST = (400, 408, 431)
_NO_KEY: list[dict[str, list[str]]] = []


def document(*, has_store: bool) -> bytes:
    """The document as JSON. `has_store`: responses are kept here."""
    operations = (*OPERATIONS, *STORE_OPERATIONS) if has_store else OPERATIONS
    paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for each in operations:
        paths[each.path][each.method] = _operation(each)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Baton",
                "version": "1",
                "description": "An OpenAI-compatible API of language models. What the fields mean "
                "stands in docs/api.md.",
            },
            "security": [{"key": []}],
            "paths": paths,
            "components": {
                "schemas": schemas_of(operations),
                "responses": _errors(),
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(each: Operation) -> dict[str, Any]:
    # Bytes have no schema.
    shape = {} if each.answer is bytes else {"schema": reference_to(each.answer)}
    content: dict[str, Any] = {each.media_type: shape}
    if each.streams:
        # Without a schema: readers differ on whether one is of the body or of each event.
        content[_EVENTS] = {}
    name = _ERRORS[each.dialect].__name__
    answers: dict[str, Any] = {
        str(status): {"$ref": f"#/components/responses/{name}{status}"}
        for status in (_OF_ANY_REQUEST if each.is_open else _reasons_by_status(each.dialect))
    }
    answer = {"description": each.summary, "content": content}
    answers |= {str(status): answer for status in each.statuses}
    described: dict[str, Any] = {
        "summary": each.summary,
        "operationId": _name_of(each),
        "parameters": list(_parameters(each)),
        "responses": answers,
    }
    if each.body is not None:
        body = {_FORM if each.is_form else _JSON: {"schema": reference_to(each.body)}}
        is_required = any(field.required for field in msgspec.structs.fields(each.body))
        described["requestBody"] = {"required": is_required, "content": body}
    return described | ({"security": _NO_KEY} if each.is_open else {})


def _name_of(each: Operation) -> str:
    parts = each.path.replace("{", "").replace("}", "").strip("/").split("/")
    return "_".join((each.method, *parts)).replace("-", "_").rstrip("_")


def _parameters(each: Operation) -> Iterable[dict[str, Any]]:
    for part in each.path.split("/"):
        if part.startswith("{"):
            schema = {"type": "string", "minLength": 1}
            yield {"name": part[1:-1], "in": "path", "required": True, "schema": schema}
    for name in each.query:
        yield {"name": name, "in": "query", "schema": _QUERY[name]}
    if each.takes_headers:
        for name, schema in _HEADERS.items():
            yield {"name": name, "in": "header", "schema": schema}


def _reasons_by_status(dialect: Dialect) -> dict[int, list[str]]:
    """The reasons of all failures but of a method that its path does not have."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for reason in REASONS.keys() - {"method_not_allowed"}:
        found[dialect.status_of(BatonError("", reason=reason))].append(reason)
    return dict(sorted(found.items()))


def _errors() -> dict[str, Any]:
    """The answers of failures: a status has the codes of its reasons."""
    found: dict[str, Any] = {}
    for dialect, struct in _ERRORS.items():
        content = {_JSON: {"schema": reference_to(struct)}}
        for status, reasons in _reasons_by_status(dialect).items():
            told = {"description": ", ".join(sorted(reasons)), "content": content}
            found[f"{struct.__name__}{status}"] = told
    return found
