"""The admin port: /metrics and /healthz, apart from what clients may reach."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY))
        elif self.path == "/healthz":
            self._answer(200, "text/plain", b"ok\n")
        else:
            self._answer(404, "text/plain", b"not found\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""


def start_admin(listen: str) -> int:
    """Serve on `listen` ("host:port") in a daemon thread; returns the bound port."""
    host, _, port = listen.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="admin", daemon=True).start()
    return int(server.server_address[1])
