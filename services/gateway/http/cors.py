"""Cross-origin requests: which pages a browser lets read the answers, by the operator's setting.

Keys come in a header that a page sets itself, never in a cookie. So no answer allows credentials,
and `*` gives a page nothing that its own server could not get.
"""

import re
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# The headers of an answer that a page may read, besides those that any page may.
EXPOSED_HEADERS = (
    "x-request-id",
    "x-client-request-id",
    *(
        f"x-ratelimit-{number}-{unit}"
        for number in ("limit", "remaining", "reset", "scope")
        for unit in ("requests", "tokens")
    ),
    "x-ratelimit-degraded",
    "request-id",
    *(
        f"anthropic-ratelimit-{unit}-{number}"
        for unit in ("requests", "tokens")
        for number in ("limit", "remaining", "reset")
    ),
    "retry-after",
    "x-should-retry",
    "server-timing",
    "x-trace-url",
    "openai-processing-ms",
    "x-explanation",
    "idempotent-replayed",
    "original-request",
)
ANY_ORIGIN = "*"
_METHODS = ("GET", "POST", "DELETE")
_MAX_AGE_S = 600
_ANY_PORT = ":*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:]+\])(?::(?:\d+|\*))?")


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The app, which answers pages of these origins; without any it is the app itself.

    An origin is as browsers send it (https://chat.example), with `:*` for any port; `*` is all of
    them. Raises ValueError.
    """
    if not origins:
        return app
    if ANY_ORIGIN in origins:
        exact, pattern = [ANY_ORIGIN], None
    else:
        exact, pattern = [], "|".join(_pattern(origin) for origin in origins)
    return CORSMiddleware(
        app,
        allow_origins=exact,
        allow_origin_regex=pattern,
        allow_methods=_METHODS,
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
        max_age=_MAX_AGE_S,
    )


def _pattern(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(
            f"cors_origins: {origin!r} is not an origin, such as https://chat.example or "
            "http://localhost:*"
        )
    if origin.endswith(_ANY_PORT):
        return re.escape(origin.removesuffix(_ANY_PORT)) + r"(?::\d+)?"
    return re.escape(origin)
