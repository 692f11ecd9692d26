"""OpenAI's error bodies, for whole responses and for the one error event of a broken stream; other
vendors' forms of them are dialects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from baton.wire.failures import BatonError, LimitExceeded
from baton.wire.v1 import failure_pb2


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form that refusals and headers have in one vendor's API, on all its paths.

    `error_body` is called with the request's id, `limit_headers` with the seconds since 1970.
    """

    status_of: Callable[[BatonError], int]
    error_body: Callable[[BatonError, str], bytes]
    # Names for limits beside ours; None where ours are the vendor's.
    limit_headers: Callable[[failure_pb2.LimitState | None, float], dict[str, str]] | None = None
    # The vendor's name for the header of the request's id; empty where it is ours.
    request_id_header: str = ""


def error_object(error: BatonError) -> dict[str, Any]:
    """{message, type, param, code} as OpenAI clients read it."""
    return {
        "message": error.message,
        "type": error.row.openai_type,
        "param": error.param or None,
        "code": error.reason,
    }


def choice_error(spent_budget: str) -> dict[str, Any]:
    """The field of a choice that a spent budget ended; other choices have none."""
    return {"error": error_object(budget_spent(spent_budget))} if spent_budget else {}


def budget_spent(spent_budget: str) -> LimitExceeded:
    """The error for a client whose answer a spent budget ended."""
    return LimitExceeded(
        f"The {spent_budget} had no room for the rest of this answer.", reason="insufficient_quota"
    )


def error_body(error: BatonError) -> bytes:
    return msgspec.json.encode({"error": error_object(error)})


OPENAI = Dialect(
    status_of=lambda error: error.row.http_status,
    error_body=lambda error, request_id: error_body(error),
)
