"""Envoy's own answers: OpenAI's error objects, with reasons of the gateway.

Only Envoy's own answers are rewritten; an answer of a gateway passes unchanged.
"""

from typing import Any

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    RuntimeUInt32,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.google.protobuf import Struct

from baton.wire.failures import REASONS

# Status, reason, message.
_REPLIES = (
    (400, "invalid_http", "this is not a valid HTTP request"),
    (404, "not_found", "no such path"),
    (408, "request_timeout", "the request did not arrive in time"),
    (413, "body_too_large", "the body is too large"),
    (431, "headers_too_large", "the headers are too large"),
    (503, "unavailable", "no gateway can take this request now"),
    (504, "deadline_exceeded", "no gateway answered in time"),
)
_RETRY_AFTER_S = 1
# The body of Envoy's own readiness, which is one of its own answers.
_READY = {"status": "ready"}


def local_replies() -> LocalReplyConfig:
    """One body for each known status; any other status is an internal error."""
    ready = ResponseMapper(filter=_status_is(200), body_format_override=_json(_READY))
    return LocalReplyConfig(
        mappers=[ready, *(_mapper(*reply) for reply in _REPLIES)],
        body_format=_body("internal", "the edge failed"),
    )


def _mapper(status: int, reason: str, message: str) -> ResponseMapper:
    is_retryable = REASONS[reason].retryable
    headers = {
        "x-request-id": "%REQ(X-REQUEST-ID)%",
        "x-should-retry": "true" if is_retryable else "false",
    }
    if is_retryable:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    return ResponseMapper(
        filter=_status_is(status),
        body_format_override=_body(reason, message),
        headers_to_add=[
            HeaderValueOption(header=HeaderValue(key=name, value=value))
            for name, value in headers.items()
        ],
    )


def _status_is(status: int) -> AccessLogFilter:
    comparison = ComparisonFilter(
        op=ComparisonFilterOp.EQ,
        value=RuntimeUInt32(default_value=status, runtime_key=f"edge.local_reply_{status}"),
    )
    return AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=comparison))


def _body(reason: str, message: str) -> SubstitutionFormatString:
    error = {
        "message": message,
        "type": REASONS[reason].openai_type,
        "param": None,
        "code": reason,
    }
    return _json({"error": error})


def _json(body: dict[str, Any]) -> SubstitutionFormatString:
    return SubstitutionFormatString(
        json_format=Struct.from_dict(body), content_type="application/json"
    )
