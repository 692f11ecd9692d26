"""Load on an OpenAI-compatible server: `python -m loadtest.raw_client`, JSON plans on stdin.

A process of its own, the same for every server: raw sockets and a parser in C. While it measures it
only notes the time of each event; events are parsed when all answers have ended. Closed
loop: `concurrency` connections, each with one request after the other. Answers one JSON line.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop

_EVENT_END = b"\n\n"
_DONE = b"data: [DONE]"
_MAX_SHOWN_ERROR = 300


class StreamedAnswer:
    """One answer: the time of its request, and (time, event) for every event."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.ended_at = 0.0
        self.status = 0
        self.events: list[tuple[float, bytes]] = []
        self.rest = b""

    def feed(self, data: bytes, now: float) -> None:
        *events, self.rest = (self.rest + data).replace(b"\r\n", b"\n").split(_EVENT_END)
        self.events += [(now, event) for event in events]

    def describe(self) -> dict[str, Any]:
        """Times in seconds of the events that bring text, and the server's count of tokens."""
        if self.status != 200:
            shown = (self.rest or b"".join(event for _, event in self.events))[:_MAX_SHOWN_ERROR]
            return {"error": f"status {self.status}: {shown.decode(errors='replace')}"}
        text_times: list[float] = []
        usage: dict[str, int] = {}
        last_error = ""
        for at, event in self._json_events():
            usage = event.get("usage") or usage
            last_error = str(event.get("error") or last_error)
            if any(_has_text(choice) for choice in event.get("choices", ())):
                text_times.append(at)
        if last_error or not text_times:
            return {"error": last_error[:_MAX_SHOWN_ERROR] or "no text in the answer"}
        return {
            "began_s": self.began_at,
            "ended_s": self.ended_at,
            "text_times_s": text_times,
            "num_prompt_tokens": usage.get("prompt_tokens", 0),
            "num_output_tokens": usage.get("completion_tokens", len(text_times)),
        }

    def _json_events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        for at, event in self.events:
            if event.startswith(b"data:") and not event.startswith(_DONE):
                yield at, json.loads(event[5:])


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._answer: StreamedAnswer
        self._done: asyncio.Future[StreamedAnswer] | None = None
        self._now = 0.0

    async def ask(self, request: bytes) -> StreamedAnswer:
        """Send a request and wait for its answer. Raises ConnectionError."""
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._answer = StreamedAnswer(time.perf_counter())
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    # the parser's side

    def on_body(self, body: bytes) -> None:
        self._answer.feed(body, self._now)

    def on_message_complete(self) -> None:
        self._answer.ended_at = self._now
        self._answer.status = self._parser.get_status_code()
        self.is_open = self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Send all of the plan's bodies; keys: url, headers, bodies, concurrency, timeout_s."""
    url = urlsplit(plan["url"])
    requests = iter([_request_bytes(plan, body) for body in plan["bodies"]])
    answers: list[StreamedAnswer] = []
    errors: list[str] = []

    async def send_requests() -> None:
        connection: Connection | None = None
        for request in requests:
            try:
                async with asyncio.timeout(plan["timeout_s"]):
                    connection = await _connected(connection, url.netloc)
                    answers.append(await connection.ask(request))
            except (OSError, TimeoutError) as error:
                errors.append(repr(error))
                if connection is not None:
                    connection.close()
        if connection is not None:
            connection.close()

    cpu_s, started = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(plan["concurrency"]):
            tasks.create_task(send_requests())
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    described = [answer.describe() for answer in answers]
    errors += [one["error"] for one in described if "error" in one]
    good = [one for one in described if "error" not in one]
    return {"wall_s": wall_s, "cpu_s": cpu_s, "requests": good, "errors": errors}


async def _connected(connection: Connection | None, netloc: str) -> Connection:
    """The same connection while it is open, else a new one."""
    if connection is not None and connection.is_open:
        return connection
    host, _, port = netloc.rpartition(":")
    loop = asyncio.get_running_loop()
    _, fresh = await loop.create_connection(Connection, host, int(port))
    return fresh


def _request_bytes(plan: dict[str, Any], body: dict[str, Any]) -> bytes:
    url = urlsplit(plan["url"])
    payload = json.dumps(body).encode()
    headers = {
        "Host": url.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(payload)),
        **plan["headers"],
    }
    lines = [f"POST {url.path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + payload


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content"))


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(run_plan(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
