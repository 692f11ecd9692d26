"""Client certificates as a way in: the edge checks them, and says in a header whose they are.

The header is believed from the edge's own addresses alone: anybody else could write it.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from baton.wire.key_registry import CERTIFICATE_IDENTITY
from services.gateway.http.request import Headers, Scope, authorization_of
from services.gateway.tenants.principal import VouchedIdentity

HEADER = "x-forwarded-client-cert"
# Name and value of a field, quoted or not; the next field, or a next certificate's, follows.
_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^;,"]*))(;|,|\Z)')
_ESCAPED = re.compile(r"\\(.)")


class Certificates:
    """Names of client certificates, as proxies of these networks tell them."""

    def __init__(self, proxies: Sequence[str], name_field: str) -> None:
        """`name_field`: the part of a certificate that is its name. Raises ValueError."""
        self._networks = [ip_network(proxy) for proxy in proxies]
        self._name_field = name_field

    def authorization(self, scope: Scope, headers: Headers) -> str | VouchedIdentity | None:
        """The Authorization header; without one, the identity of the client's certificate."""
        given = authorization_of(headers)
        return self.identity(scope, headers) if given is None else given

    def identity(self, scope: Scope, headers: Headers) -> VouchedIdentity | None:
        """The identity of the client's certificate; None when a proxy of ours tells of none."""
        value = headers.get(HEADER)
        if not value or not self._is_ours(scope.get("client")):
            return None
        name = _fields(value).get(self._name_field)
        return VouchedIdentity(CERTIFICATE_IDENTITY + name) if name else None

    def _is_ours(self, client: tuple[str, int] | None) -> bool:
        if client is None:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _fields(value: str) -> dict[str, str]:
    """The fields of one certificate, the first of each name, by lower-case names; none where there
    are several certificates, or it is not well-formed."""
    fields: dict[str, str] = {}
    end = 0
    while end < len(value):
        match = _FIELD.match(value, end)
        if match is None or match[4] == ",":
            return {}
        found = match[3] if match[2] is None else _ESCAPED.sub(r"\1", match[2])
        fields.setdefault(match[1].lower(), found)
        end = match.end()
    return fields
