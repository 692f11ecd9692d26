"""A hub of models over real HTTP: repositories in memory, and the faults that a test asks for.

It answers what huggingface_hub asks a hub without Xet: the description of a revision, HEAD and GET
of a file, which leads to another address for large ones, with ranges.
"""

import json
from collections import Counter
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.kit.memory_server import MemoryServer

LARGE_BYTES = 10_000


class Hub(MemoryServer):
    """One repository, `org/model`, at one commit; `url` is HF_ENDPOINT's value."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.commit = sha1(json.dumps(sorted(files)).encode()).hexdigest()
        # (method, path) of all requests, without the query.
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[str] = []
        # How often the next answers to a path are refused with 429, and the bytes after which the
        # next answer's connection is cut.
        self.refusals: Counter[str] = Counter()
        self.cuts: dict[str, int] = {}
        self.damaged: set[str] = set()
        self.tells_sizes = True
        super().__init__(_Handler)
        # Another host, as of a store behind the hub.
        self.cdn = f"http://localhost:{self.port}/cdn"

    def fetched(self) -> set[str]:
        """The files whose content was asked for."""
        paths = {path for method, path in self.requests if method == "GET"}
        return {name for name in self.files if any(path.endswith(f"/{name}") for path in paths)}

    def description(self) -> dict[str, Any]:
        siblings = [self._sibling(name, content) for name, content in self.files.items()]
        return {"id": "org/model", "sha": self.commit, "siblings": siblings}

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": name}
        if self.tells_sizes:
            entry["size"] = len(content)
        if len(content) >= LARGE_BYTES:
            digest = sha256(content).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        return entry


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.owner.requests.append((self.command, path))
        if self.owner.refusals[path]:
            self.owner.refusals[path] -= 1
            self._send(429, {"Retry-After": "0"})
        elif path.startswith("/api/models/org/model"):
            self._send(
                200, {"Content-Type": "application/json"}, json.dumps(self.owner.description())
            )
        elif path.startswith("/org/model/resolve/"):
            self._resolve(path.split("/", 5)[5])
        elif path.startswith("/cdn/"):
            self._content(path.removeprefix("/cdn/"))
        else:
            self._send(404, {})

    def _resolve(self, name: str) -> None:
        content = self.owner.files[name]
        headers = {
            "X-Repo-Commit": self.owner.commit,
            "ETag": f'"{sha256(content).hexdigest()}"',
            "X-Linked-Size": str(len(content)),
        }
        if len(content) >= LARGE_BYTES:
            self._send(302, {**headers, "Location": f"{self.owner.cdn}/{name}"})
        else:
            self._send(200, headers, content)

    def _content(self, name: str) -> None:
        content = self.owner.files[name]
        if name in self.owner.damaged:
            content = content[:-1] + b"?"
        start = 0
        if asked := self.headers.get("Range"):
            self.owner.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        cut = self.owner.cuts.pop(name, None)
        self._send(206 if start else 200, headers if start else {}, content[start:], cut=cut)

    def _send(
        self, status: int, headers: dict[str, str], body: bytes | str = b"", cut: int | None = None
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True
