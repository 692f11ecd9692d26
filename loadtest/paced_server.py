"""A server whose answers are known, to test clients: `python -m loadtest.paced_server`.

One token every `--gap-ms`, the first after `--ttft-ms`, on a fixed schedule: a token that is late
does not delay the next. Speaks as much of OpenAI's API as the load tests do; a word is a token.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httptools

MAX_MODEL_LEN = 4096
TEMPLATE_TOKENS = 7
COUNT_PATH = "/num_whole"
_MAX_BODY_BYTES = 8 << 20
_EVENT = 'data: {{"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}\n\n'
_STAGES = ("tokenize", "queue", "prefill")


class PacedConnection(asyncio.Protocol):
    """One client's connection; requests one after the other. Counts, with all others, the streams
    that were written to their end, by their number of tokens."""

    def __init__(self, ttft_s: float, gap_s: float, num_whole: Counter[int]) -> None:
        self._ttft_s = ttft_s
        self._gap_s = gap_s
        self._num_whole = num_whole
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._answering: asyncio.Task[None] | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    # the parser's side

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > _MAX_BODY_BYTES:
            self._transport.close()

    def on_message_complete(self) -> None:
        if self._url == b"/v1/models":
            self._write_json({"data": [{"id": "paced", "max_model_len": MAX_MODEL_LEN}]})
            return
        if self._url == COUNT_PATH.encode():
            self._write_json(self._num_whole)
            return
        asked = json.loads(self._body)
        if asked.get("stream"):
            self._answering = asyncio.get_running_loop().create_task(self._stream(asked))
        else:
            self._write_json({"usage": _usage(asked)})

    # answers

    async def _stream(self, asked: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + self._ttft_s
        await asyncio.sleep(self._ttft_s)
        stages = ", ".join(f"{name};dur={self._ttft_s * 1000 / 4:.1f}" for name in _STAGES)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"x-request-id: req_paced\r\ntransfer-encoding: chunked\r\n"
            + f"server-timing: {stages}\r\n\r\n".encode()
        )
        last = asked["max_tokens"] - 1
        for number in range(last):
            self._transport.write(_chunk(_EVENT.format(f" word{number}")))
            at_s += self._gap_s
            await asyncio.sleep(at_s - loop.time())
        usage = json.dumps({"choices": [], "usage": _usage(asked)})
        end = _chunk(f"data: {usage}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
        # At once: a client that has the last token has the end.
        self._transport.write(_chunk(_EVENT.format(f" word{last}")) + end)
        self._num_whole[asked["max_tokens"]] += 1

    def _write_json(self, body: Mapping[Any, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + data)


def _chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _usage(asked: Mapping[str, Any]) -> dict[str, int]:
    num_words = sum(len(message["content"].split()) for message in asked["messages"])
    return {
        "prompt_tokens": num_words + TEMPLATE_TOKENS,
        "completion_tokens": asked["max_tokens"],
    }


async def serve(port: int, ttft_s: float, gap_s: float) -> None:
    """Says where it listens, and serves until it is cancelled."""
    num_whole: Counter[int] = Counter()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: PacedConnection(ttft_s, gap_s, num_whole), "127.0.0.1", port, backlog=1024
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=100)
    parser.add_argument("--gap-ms", type=float, default=20)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.ttft_ms / 1000, options.gap_ms / 1000))


if __name__ == "__main__":
    main()
