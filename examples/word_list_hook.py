"""A safety hook that knows a list of words, in the form of OpenAI's /v1/moderations.

    python examples/word_list_hook.py WORDS_FILE [PORT]
    BATON_GATEWAY_SAFETY_URL=http://127.0.0.1:8090/v1/moderations

The file has one word or phrase a line. An example to begin with: put a classifier in its place.
"""

import json
import re
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PORT = 8090
MAX_BODY_BYTES = 16 * 1024 * 1024


class Handler(BaseHTTPRequestHandler):
    """Answers one connection, which stays open for further requests."""

    protocol_version = "HTTP/1.1"
    server: "WordListServer"

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self._answer(400, {"error": {"message": "send a body of a known length"}})
            return
        try:
            given = json.loads(self.rfile.read(int(length)))["input"]
        except (ValueError, KeyError, TypeError):
            self._answer(400, {"error": {"message": "input: missing"}})
            return
        texts = [given] if isinstance(given, str) else given
        self._answer(200, {"id": "modr", "model": "word-list", "results": self._results(texts)})

    def _results(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        flags = [bool(self.server.pattern.search(text)) for text in texts]
        return [{"flagged": flag, "categories": {"word_list": flag}} for flag in flags]

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the texts are clients'."""


class WordListServer(ThreadingHTTPServer):
    """Flags texts with one of these words, in whatever case."""

    daemon_threads = True

    def __init__(self, words: Sequence[str], port: int = PORT) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        named = "|".join(re.escape(word) for word in words)
        self.pattern = re.compile(rf"\b(?:{named})\b" if named else r"(?!)", re.IGNORECASE)


def main(words_file: str, port: str = str(PORT)) -> None:
    lines = Path(words_file).read_text().splitlines()
    words = [line.strip() for line in lines if line.strip()]
    WordListServer(words, int(port)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
