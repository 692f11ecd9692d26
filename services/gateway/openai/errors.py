"""OpenAI's error bodies, for whole responses and for the one error event of a broken stream."""

from typing import Any

import msgspec

from baton.wire.failures import BatonError, LimitExceeded


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
