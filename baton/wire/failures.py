"""All failures of a request: one table from reason to gRPC code, HTTP status and OpenAI type.

    BatonError
    +-- InvalidRequest       the client's fault; retrying cannot help
    |   +-- AuthenticationFailed, ModelNotFound
    +-- LimitExceeded        the tenant's own limit
    +-- Unavailable          the platform's fault; retrying may help
    |   +-- Overloaded, NoRoom
    +-- DeadlineExceeded
    +-- Cancelled            the caller left
    +-- Incompatible         two processes cannot work together (protocol, fingerprint, KV spec)
    +-- InternalFailure      our bug

Each error carries a stable `reason`, and REASONS fixes its translation. Errors are translated only
at the edges (runtime.grpc_server, runtime.grpc_channel, the gateway's app).
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from baton.wire.v1 import failure_pb2

MAX_QUOTED_CHARS = 64
_MAX_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """The translation of one reason at the edges."""

    grpc_code: str  # name in grpc.StatusCode
    http_status: int
    openai_type: str
    retryable: bool


_INVALID = ReasonRow("INVALID_ARGUMENT", 400, "invalid_request_error", False)
_UNAUTHENTICATED = ReasonRow("UNAUTHENTICATED", 401, "authentication_error", False)
_LIMIT = ReasonRow("RESOURCE_EXHAUSTED", 429, "rate_limit_error", True)
_UNAVAILABLE = ReasonRow("UNAVAILABLE", 503, "service_unavailable_error", True)
_DEADLINE = ReasonRow("DEADLINE_EXCEEDED", 504, "timeout_error", False)
_INCOMPATIBLE = ReasonRow("FAILED_PRECONDITION", 503, "service_unavailable_error", True)
_INTERNAL = ReasonRow("INTERNAL", 500, "server_error", False)

REASONS: dict[str, ReasonRow] = {
    "missing_api_key": _UNAUTHENTICATED,
    "invalid_api_key": _UNAUTHENTICATED,
    "invalid_value": _INVALID,
    "unsupported_parameter": _INVALID,
    "unsupported_content": _INVALID,
    "context_length_exceeded": _INVALID,
    "invalid_token_id": _INVALID,
    "invalid_json": _INVALID,
    "invalid_unicode": _INVALID,
    "duplicate_key": _INVALID,
    "json_too_deep": _INVALID,
    "no_chat_template": _INVALID,
    "not_an_embedding_model": _INVALID,
    "not_a_reranker": _INVALID,
    "not_a_text_model": _INVALID,
    "template_error": _INVALID,
    "run_too_long": _INVALID,
    "invalid_grammar": _INVALID,
    "request_exceeds_limit": _INVALID,
    "request_quarantined": _INVALID,
    "body_too_large": ReasonRow("INVALID_ARGUMENT", 413, "invalid_request_error", False),
    "unsupported_media_type": ReasonRow("INVALID_ARGUMENT", 415, "invalid_request_error", False),
    "unsupported_encoding": ReasonRow("INVALID_ARGUMENT", 415, "invalid_request_error", False),
    "headers_too_large": ReasonRow("INVALID_ARGUMENT", 431, "invalid_request_error", False),
    "invalid_http": _INVALID,
    "caller_refused": ReasonRow("PERMISSION_DENIED", 403, "invalid_request_error", False),
    "request_timeout": ReasonRow("INVALID_ARGUMENT", 408, "invalid_request_error", False),
    "not_found": ReasonRow("NOT_FOUND", 404, "invalid_request_error", False),
    "method_not_allowed": ReasonRow("UNIMPLEMENTED", 405, "invalid_request_error", False),
    "model_not_found": ReasonRow("NOT_FOUND", 404, "invalid_request_error", False),
    "idempotency_key_in_use": ReasonRow("ABORTED", 409, "invalid_request_error", True),
    "idempotency_key_reused": ReasonRow("INVALID_ARGUMENT", 422, "invalid_request_error", False),
    "answer_not_kept": ReasonRow("ALREADY_EXISTS", 409, "invalid_request_error", False),
    "previous_response_not_found": _INVALID,
    "content_filter": _INVALID,
    "rate_limit_exceeded": _LIMIT,
    "share_exceeded": _LIMIT,
    "insufficient_quota": ReasonRow("RESOURCE_EXHAUSTED", 429, "insufficient_quota", False),
    "overloaded": _UNAVAILABLE,
    "no_worker": _UNAVAILABLE,
    "no_tokenizer": _UNAVAILABLE,
    "no_room": _UNAVAILABLE,
    "draining": _UNAVAILABLE,
    "unavailable": _UNAVAILABLE,
    "quota_unavailable": _UNAVAILABLE,
    "store_unavailable": _UNAVAILABLE,
    "safety_unavailable": _UNAVAILABLE,
    "worker_lost": _UNAVAILABLE,
    "handoff_failed": _UNAVAILABLE,
    "prefill_refused": _UNAVAILABLE,
    "deadline_exceeded": _DEADLINE,
    "client_stalled": _DEADLINE,
    "cancelled": ReasonRow("CANCELLED", 499, "cancelled", False),
    "incompatible": _INCOMPATIBLE,
    "internal": _INTERNAL,
}


def quoted(value: object) -> str:
    """A client's value for an error message, cut to MAX_QUOTED_CHARS."""
    text = str(value)
    return repr(text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "...")


def did_you_mean(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """The end of a message about a name that is not known: the nearest one that is, if one is
    near. Of many only the first are looked at. `least`: how alike they are, up to 1."""
    looked_at = list(islice(known, _MAX_LOOKED_AT))
    nearest = difflib.get_close_matches(name[:MAX_QUOTED_CHARS], looked_at, 1, least)
    return f"; did you mean {nearest[0]}?" if nearest else ""


class BatonError(Exception):
    """Base of all expected failures. `reason` must be a key of REASONS.

    `is_suspect`: a core died in a step with this failure's request.
    """

    default_reason: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        param: str = "",
        retry_after_s: float = 0.0,
        limits: failure_pb2.LimitState | None = None,
        is_suspect: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.param = param
        self.retry_after_s = retry_after_s
        self.limits = limits
        self.is_suspect = is_suspect
        assert self.reason in REASONS, f"unknown reason {self.reason}"

    @property
    def row(self) -> ReasonRow:
        return REASONS[self.reason]

    @property
    def log_detail(self) -> str:
        """The message, for a log; empty where it may quote a client."""
        return self.message if self.row.http_status >= 500 else ""


class InvalidRequest(BatonError):
    default_reason = "invalid_value"


class AuthenticationFailed(InvalidRequest):
    default_reason = "invalid_api_key"


class ModelNotFound(InvalidRequest):
    default_reason = "model_not_found"


class LimitExceeded(BatonError):
    default_reason = "rate_limit_exceeded"


class Unavailable(BatonError):
    default_reason = "unavailable"


class Overloaded(Unavailable):
    default_reason = "overloaded"


class NoRoom(Unavailable):
    default_reason = "no_room"


class DeadlineExceeded(BatonError):
    default_reason = "deadline_exceeded"


class Cancelled(BatonError):
    default_reason = "cancelled"


class Incompatible(BatonError):
    default_reason = "incompatible"


class InternalFailure(BatonError):
    default_reason = "internal"


_CLASS_OF_REASON: dict[str, type[BatonError]] = {
    cls.default_reason: cls
    for cls in (
        InvalidRequest, AuthenticationFailed, ModelNotFound, LimitExceeded, Unavailable, Overloaded,
        NoRoom, DeadlineExceeded, Cancelled, Incompatible, InternalFailure,
    )
}  # fmt: skip
_CLASS_OF_ROW: dict[int, type[BatonError]] = {
    400: InvalidRequest, 401: AuthenticationFailed, 403: InvalidRequest, 404: InvalidRequest,
    405: InvalidRequest, 408: InvalidRequest, 409: InvalidRequest, 413: InvalidRequest,
    415: InvalidRequest, 422: InvalidRequest, 429: LimitExceeded, 431: InvalidRequest,
    499: Cancelled, 500: InternalFailure, 503: Unavailable, 504: DeadlineExceeded,
}  # fmt: skip


def to_wire(error: BatonError) -> failure_pb2.Failure:
    """The message for an error, in frames and in trailing metadata."""
    return failure_pb2.Failure(
        reason=error.reason,
        message=error.message,
        param=error.param,
        retry_after_ms=round(error.retry_after_s * 1000),
        limits=error.limits,
        is_suspect=error.is_suspect,
    )


def from_wire(failure: failure_pb2.Failure) -> BatonError:
    """The error that a peer sent. A reason unknown to this version becomes `internal`."""
    reason = failure.reason if failure.reason in REASONS else "internal"
    cls = _CLASS_OF_REASON.get(reason) or _CLASS_OF_ROW[REASONS[reason].http_status]
    return cls(
        failure.message,
        reason=reason,
        param=failure.param,
        retry_after_s=failure.retry_after_ms / 1000,
        limits=failure.limits if failure.HasField("limits") else None,
        is_suspect=failure.is_suspect,
    )
