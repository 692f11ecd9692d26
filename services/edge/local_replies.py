"""What Envoy says by itself: OpenAI's errors, with reasons that the gateway has, too.

Only Envoy's own answers are rewritten; an answer of a gateway passes as it is.
"""

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


def local_replies() -> LocalReplyConfig:
    """One body for each status; any other one is an internal error."""
    return LocalReplyConfig(
        mappers=[_mapper(*reply) for reply in _REPLIES],
        body_format=_body("internal", "the edge failed"),
    )


def _mapper(status: int, reason: str, message: str) -> ResponseMapper:
    is_retryable = REASONS[reason].retryable
    headers = {"x-should-retry": "true" if is_retryable else "false"}
    if is_retryable:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    comparison = ComparisonFilter(
        op=ComparisonFilterOp.EQ,
        value=RuntimeUInt32(default_value=status, runtime_key=f"edge.local_reply_{status}"),
    )
    return ResponseMapper(
        filter=AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=comparison)),
        body_format_override=_body(reason, message),
        headers_to_add=[
            HeaderValueOption(header=HeaderValue(key=name, value=value))
            for name, value in headers.items()
        ],
    )


def _body(reason: str, message: str) -> SubstitutionFormatString:
    error = {
        "message": message,
        "type": REASONS[reason].openai_type,
        "param": None,
        "code": reason,
    }
    return SubstitutionFormatString(
        json_format=Struct.from_dict({"error": error}), content_type="application/json"
    )
