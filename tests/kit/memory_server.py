"""An HTTP server in a thread, for doubles that keep all in memory."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class MemoryServer:
    """Serves until `close`. Each request gets a handler of this class, whose `owner` is this."""

    # Port 0 = a free one.
    address = ("127.0.0.1", 0)

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        owned: Any = type(handler.__name__, (handler,), {"owner": self})
        self._server = ThreadingHTTPServer(self.address, owned)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
