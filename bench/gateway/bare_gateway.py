"""The least that a request costs a gateway of the same libraries: HTTP, and five messages there and
back on gRPC streams, without anything that a gateway does.

`python -m bench.gateway.bare_gateway` measures it with the load of `requests`. Beside a result of
`python -m bench gateway --part requests` of the same minutes it tells what the libraries cost.
"""

from baton.runtime.calls import grpc_polling  # isort: skip # noqa: F401

import asyncio
import socket
import sys
from collections import deque
from contextlib import ExitStack
from typing import Any

import grpc
import msgspec
import uvicorn
import uvloop

from baton.demo_model import demo_model_path
from baton.runtime.grpc_channel import open_channel
from bench.contenders import clean_environment
from bench.gateway.gateway_bench import NEVER_US, SHORT_LOAD, SHORT_PROMPT
from bench.gateway.pace import AnswerPace
from bench.gateway.stream_load import Server, StreamLoad, plan_of
from bench.measured_process import MeasuredProcess, Runner
from bench.models import cache_folder
from bench.workload import WordList

# As long as those of a short request and its answer, about.
_SERVICES = {"quota": 250, "tokenizer": 1300, "router": 350, "worker": 1500}
_ANSWER_BYTES = 300
_EVENT = b'data: {"choices":[{"delta":{"content":"' + b" " * 250 + b'"}}]}\n\n'
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
_NUM_ROUNDS, _SECONDS = 3, 4.0


class EchoCalls:
    """Messages on one stream to a service that answers each, in order."""

    def __init__(self, target: str, num_bytes: int) -> None:
        self._call: Any = open_channel(target, link=True).stream_stream("/bench.Echo/Echo")()
        self._message = b"x" * num_bytes
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._writing = asyncio.Lock()
        self._task = asyncio.create_task(self._read())

    async def ask(self) -> None:
        """Send a message, and wait for the answer."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with self._writing:
            self._waiting.append(answered)
            await self._call.write(self._message)
        await answered

    async def _read(self) -> None:
        while (answer := await self._call.read()) is not grpc.aio.EOF:
            self._waiting.popleft().set_result(answer)


class BareGateway:
    """An ASGI application that asks all services as a gateway would, and knows nothing."""

    def __init__(self, target: str) -> None:
        self._calls = {name: EchoCalls(target, size) for name, size in _SERVICES.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        msgspec.json.decode((await receive())["body"])
        calls = self._calls
        await asyncio.gather(calls["quota"].ask(), calls["tokenizer"].ask())
        await calls["router"].ask()
        await calls["worker"].ask()
        await send(_START)
        await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
        await calls["quota"].ask()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _serve_echo() -> None:
    async def echo(requests: Any, context: Any) -> None:
        while (await context.read()) is not grpc.aio.EOF:
            await context.write(b"x" * _ANSWER_BYTES)

    method: Any = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("bench.Echo", {"Echo": method})
    server.add_generic_rpc_handlers([handler])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def _serve_http(target: str) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        BareGateway(target), loop="none", http="httptools", lifespan="off", log_level="warning",
        access_log=False,
    )  # fmt: skip
    print(bound.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve([bound])


def _start(name: str, *arguments: str) -> tuple[MeasuredProcess, int]:
    """Start a part of this module; returns it with its port."""
    argv = [sys.executable, "-m", "bench.gateway.bare_gateway", name, *arguments]
    log = cache_folder() / "logs" / f"bare-{name}.log"
    process = MeasuredProcess(argv, log, clean_environment(), is_runner=True)
    line = process.stdout.readline()
    if not line:
        raise process.failure()
    return process, int(line)


def measure() -> None:
    """Print the CPU time of a request of each round."""
    words = WordList.of_tokenizer(demo_model_path() / "tokenizer.json")
    with ExitStack() as stack:
        services, port = _start("echo")
        stack.callback(services.stop)
        gateway, http_port = _start("http", f"127.0.0.1:{port}")
        stack.callback(gateway.stop)
        argv = [sys.executable, "-m", "bench.gateway.load_client"]
        client = Runner(argv, cache_folder() / "logs" / "bare-client.log", clean_environment())
        stack.callback(client.stop)
        server = Server(f"http://127.0.0.1:{http_port}/", {}, {"gateway": gateway.pid})
        num, pace = SHORT_LOAD.num_streams, AnswerPace(0, NEVER_US)
        load = StreamLoad("requests", num, pace, 1, SHORT_PROMPT)
        for _ in range(_NUM_ROUNDS):
            told = client.ask(plan_of(load, server, words, _SECONDS))
            us = told["cpu_s"]["gateway"] / told["num_requests"] * 1e6
            print(f"{us:.0f} us of CPU time per request, {told['num_requests']} requests")


if __name__ == "__main__":
    if sys.argv[1:] == []:
        measure()
    else:
        uvloop.run(_serve_echo() if sys.argv[1] == "echo" else _serve_http(sys.argv[2]))
