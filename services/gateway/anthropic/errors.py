"""Anthropic's form of errors, and its names for limits in headers."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from baton.wire.failures import BatonError
from baton.wire.v1 import failure_pb2
from services.gateway.openai.errors import Dialect

# By the status of a reason; others are invalid requests.
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Anthropic's clients know an overloaded server by a status of its own.
_STATUS = {503: 529}


def status_of(error: BatonError) -> int:
    """The status of a refusal."""
    return _STATUS.get(error.row.http_status, error.row.http_status)


def error_object(error: BatonError, request_id: str) -> dict[str, Any]:
    """An error as Anthropic's clients read it, in a body or in the last event of a stream."""
    kind = _TYPES.get(error.row.http_status, "invalid_request_error")
    told = {"type": kind, "message": error.message}
    return {"type": "error", "error": told, "request_id": request_id}


def _error_body(error: BatonError, request_id: str) -> bytes:
    return msgspec.json.encode(error_object(error, request_id))


def limit_headers(limits: failure_pb2.LimitState | None, unix_s: float) -> dict[str, str]:
    """The anthropic-ratelimit-* headers at this time; a limit of 0 means unlimited and is left
    out."""
    if limits is None:
        return {}
    counts = {
        "requests": (limits.limit_requests, limits.remaining_requests, limits.reset_requests_ms),
        "tokens": (limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_ms),
    }
    headers = {}
    for name, (limit, remaining, reset_ms) in counts.items():
        if limit:
            headers[f"anthropic-ratelimit-{name}-limit"] = str(limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(remaining)
            headers[f"anthropic-ratelimit-{name}-reset"] = _moment(unix_s + reset_ms / 1000)
    return headers


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


ANTHROPIC = Dialect(status_of, _error_body, limit_headers, request_id_header="request-id")
