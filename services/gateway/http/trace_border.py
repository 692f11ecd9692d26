"""The border at which a client's trace ends and one of ours begins (decision 0084).

The sender of `traceparent` decides whether a request is sampled. A client must not: it could make
every request dear, or hide its own. So a request begins a trace here, with the client's as a link,
unless the operator trusts what calls this gateway: an Envoy of ours, which is a border itself,
or a mesh. That Envoy says in a header of its own where the client's trace is.
"""

import re
from dataclasses import dataclass

from services.gateway.http.request import Headers

# Envoy's (services/edge/http_manager.py); it is removed from what clients send.
CLIENT_HEADER = "x-baton-client-traceparent"
_HEADER = "traceparent"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class TraceBorder:
    """Reads W3C trace contexts. `trusts_callers`: their decision about sampling holds here, too."""

    trusts_callers: bool = False

    def parent(self, headers: Headers) -> str:
        """The trace context that a request's span is below; empty where it begins a trace."""
        return _context(headers, _HEADER) if self.trusts_callers else ""

    def links(self, headers: Headers) -> tuple[tuple[str, str], ...]:
        """The trace contexts that its span points to, with what they are."""
        client = _context(headers, CLIENT_HEADER if self.trusts_callers else _HEADER)
        return ((client, "client"),) if client else ()


def _context(headers: Headers, name: str) -> str:
    """The trace context in this header; empty when there is none that is well-formed."""
    value = headers.get(name) or ""
    return value if _TRACEPARENT.fullmatch(value) else ""
