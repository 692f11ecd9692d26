"""The page's HTTP server, and the certificate that it may have."""

from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from baton.runtime.http_server import LoopServer


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate and its key, read once."""

    cert_file: Path
    key_file: Path


class PageServer(LoopServer):
    """Requests that are open when it ends are cut off: a page in a browser keeps one open."""

    def __init__(
        self, app: ASGIApp, max_connections: int | None = None, tls: Tls | None = None
    ) -> None:
        super().__init__(
            app,
            limit_concurrency=max_connections,
            ssl_certfile=tls.cert_file if tls else None,
            ssl_keyfile=tls.key_file if tls else None,
        )

    def drain(self) -> None:
        self.should_exit = self.force_exit = True
