"""What /openapi.json says of bodies and answers, to compare it with what the gateway takes and
gives."""

import json
from functools import cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from services.gateway.openapi.document import document
from services.gateway.openapi.operations import OPERATIONS, STORE_OPERATIONS, Operation


@cache
def described() -> dict[str, Any]:
    """The whole document."""
    found: dict[str, Any] = json.loads(document(has_store=True))
    return found


@cache
def operation_of(method: str, path: str) -> Operation:
    every = (*OPERATIONS, *STORE_OPERATIONS)
    (found,) = (each for each in every if (each.method, each.path) == (method, path))
    return found


@cache
def _validator(path: str) -> Draft202012Validator:
    body = operation_of("post", path).body
    assert body is not None
    reference = {"$ref": f"#/components/schemas/{body.__name__}"}
    return Draft202012Validator({**reference, "components": described()["components"]})


def faults(path: str, body: bytes) -> list[str]:
    """The reasons for which the document does not allow this body."""
    found = _validator(path).iter_errors(json.loads(body or b"{}"))
    return [error.message[:300] for error in found]


def is_described(answer: bytes, struct: type[msgspec.Struct]) -> bool:
    """True when the answer has all the fields that the document says, and no others."""
    found = msgspec.json.decode(answer)
    return bool(msgspec.to_builtins(msgspec.convert(found, struct)) == found)
