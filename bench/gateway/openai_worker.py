"""A server of OpenAI's API without a model: `python -m bench.gateway.openai_worker PORT`.

It streams chats at the pace that the seed of each request names, as the simulated worker of the
product does, and does as little as it can: other gateways are measured in front of it. Every token
is a word with one space. `GET /counts` says how many streams it was asked for.
"""

import asyncio
import json
import sys
import time
from itertools import cycle
from typing import Any

import httptools
import uvloop

from bench.gateway.pace import AnswerPace

MODEL = "baton-demo"
_NUM_WORDS = 64
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    shown = {
        "id": "chatcmpl-simulated",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [choice],
    }
    return _chunk(b"data: %b\n\n" % json.dumps(shown, separators=(",", ":")).encode())


_ROLE = _event({"role": "assistant", "content": ""})
# They differ: LiteLLM ends a stream that repeats itself.
_WORDS = [_event({"content": f" word{index:02d}"}) for index in range(_NUM_WORDS)]
_END = _event({}, "length") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _json(fields: Any, status: bytes = b"200 OK") -> bytes:
    body = json.dumps(fields).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_CARD = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "simulated"}
# What routers ask workers for. By path.
_ANSWERS = {
    b"/health": _json({}),
    b"/v1/models": _json({"object": "list", "data": [_CARD]}),
    **dict.fromkeys(
        (b"/get_server_info", b"/get_model_info", b"/server_info", b"/model_info"),
        _json({"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}),
    ),
}
_NOT_FOUND = _json({"error": {"message": "no such path"}}, b"404 Not Found")


class Worker:
    """All streams, by their paces: those of one pace get a token in each step."""

    def __init__(self) -> None:
        self.num_streams = 0
        self._steps: dict[int, list[Stream]] = {}

    def begin(self, stream: "Stream", pace: AnswerPace) -> None:
        """Write the first token, and go on in the steps of its pace."""
        stream.write(_HEAD + _ROLE)
        if stream.step():
            self._wait(stream, pace.step_us)

    def _wait(self, stream: "Stream", step_us: int) -> None:
        if step_us in self._steps:
            self._steps[step_us].append(stream)
            return
        self._steps[step_us] = [stream]
        self._step_later(step_us, time.monotonic())

    def _step(self, step_us: int, due_s: float) -> None:
        """Give each stream a token; a machine that is behind skips steps."""
        left = [stream for stream in self._steps[step_us] if stream.step()]
        if not left:
            del self._steps[step_us]
            return
        self._steps[step_us] = left
        self._step_later(step_us, due_s)

    def _step_later(self, step_us: int, last_due_s: float) -> None:
        now = time.monotonic()
        due_s = max(last_due_s + step_us / 1e6, now)
        asyncio.get_running_loop().call_later(due_s - now, self._step, step_us, due_s)


class Stream:
    """One answer that is being written."""

    def __init__(self, transport: asyncio.Transport, num_tokens: int, number: int) -> None:
        self.write = transport.write
        self._is_closing = transport.is_closing
        self._left = num_tokens
        self._words = cycle(_WORDS[number % _NUM_WORDS :] + _WORDS[: number % _NUM_WORDS])

    def step(self) -> bool:
        """Write a token; False after the last one, or when nobody reads."""
        if self._is_closing():
            return False
        self._left -= 1
        self.write(next(self._words) if self._left else next(self._words) + _END)
        return self._left > 0


class Connection(asyncio.Protocol):
    """One connection; its parser calls the methods that begin with `on_`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._path = self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            # A router tries HTTP/2 first.
            self._transport.close()

    def on_message_begin(self) -> None:
        self._path = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path == b"/counts":
            self._transport.write(_json({"num_streams": self._worker.num_streams}))
        elif self._path.endswith(b"/chat/completions"):
            self._chat(json.loads(self._body))
        else:
            self._transport.write(_ANSWERS.get(self._path, _NOT_FOUND))

    def _chat(self, fields: dict[str, Any]) -> None:
        worker, pace = self._worker, AnswerPace.of_seed(fields["seed"])
        # sglang-router writes the newer name.
        num_tokens = fields.get("max_tokens") or fields["max_completion_tokens"]
        stream = Stream(self._transport, num_tokens, worker.num_streams)
        worker.num_streams += 1
        if pace.prefill_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(pace.prefill_ms / 1000, worker.begin, stream, pace)
        else:
            worker.begin(stream, pace)


async def serve(port: int) -> None:
    """Serve until the process ends."""
    worker = Worker()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(worker), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
