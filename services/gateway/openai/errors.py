"""OpenAI's error bodies, for whole responses and for the one error event of a broken stream."""

from typing import Any

import msgspec

from baton.wire.failures import BatonError


def error_object(error: BatonError) -> dict[str, Any]:
    """{message, type, param, code} as OpenAI clients read it."""
    return {
        "message": error.message,
        "type": error.row.openai_type,
        "param": error.param or None,
        "code": error.reason,
    }


def error_body(error: BatonError) -> bytes:
    return msgspec.json.encode({"error": error_object(error)})
