"""The services that alone may call this gateway, by the certificates that they show."""

import asyncio
import ssl
from collections.abc import Collection
from dataclasses import dataclass

from baton.runtime.callers import refusal
from baton.runtime.peer_tls import PeerTls


@dataclass(frozen=True, slots=True)
class HttpCallers:
    """Our own identity, and the names of services: "envoy"."""

    identity: PeerTls
    services: Collection[str]

    def context(self) -> ssl.SSLContext:
        """For a server; who shows no certificate is let in to hear that it may not call."""
        return self.identity.server_context()

    def refusal(self, transport: asyncio.Transport) -> str:
        """The reason for which the other end may not call; empty = it may."""
        shown = transport.get_extra_info("peercert")
        if not shown:
            return "this gateway is called by services with a certificate"
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
        return refusal(names, self.identity, "the gateway", self.services)
