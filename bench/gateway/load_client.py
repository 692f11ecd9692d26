"""Streams on one gateway, counted and not parsed: JSON plans on stdin, one answer line each.

`python -m bench.gateway.load_client`; a process of its own. Its plans:

    tokens    so many streams that run all the time; counts tokens, events and bytes of a while
    requests  so many clients, each with one request after the other; times of first tokens. They
              begin one by one over `spread_s`, or else all at once
    idle      so many streams that have begun and then wait

CPU time and memory of the processes in `pids`, with their children, are taken at the ends of the
while that counts.
"""

import asyncio
import json
import re
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import psutil
import uvloop

Record = dict[str, Any]
_EVENT, _HEAD_END, _END = b'"content":', b"\r\n\r\n", b"0\r\n\r\n"
_EVENT_START, _ERROR = b"data: ", b'"error":'
# A stage in the header Server-Timing.
_STAGE = re.compile(rb"(\w+);dur=([\d.]+)")
_CONNECT_AT_ONCE = 64
# A gateway that others cannot begin at beside the streams that run would be waited for for ever.
_OPEN_TIMEOUT_S = 120.0


class CountingConnection(asyncio.Protocol):
    """One connection, with one stream at a time. A token of the simulated worker is one space."""

    def __init__(self) -> None:
        self.num_spaces = self.num_starts = self.num_events = self.num_bytes = 0
        self.first_s = 0.0
        # The stages up to the first token, as the response's headers tell them, in seconds.
        self.stages_s: dict[str, float] = {}
        self._head: bytes | None = b""
        self._asked_s = 0.0
        self._transport: asyncio.Transport
        self.begun: asyncio.Future[None]
        self.ended: asyncio.Future[None]

    def ask(self, request: bytes) -> None:
        """Send a request; `begun` and `ended` are done with its first token and its end."""
        loop = asyncio.get_running_loop()
        self.begun, self.ended, self._head = loop.create_future(), loop.create_future(), b""
        self._asked_s = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_exception(ConnectionError(f"the server closed: {exc}"))
                future.exception()

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._take_head(data)
            return
        self.num_bytes += len(data)
        self.num_spaces += data.count(b" ")
        self.num_starts += data.count(_EVENT_START)
        self.num_events += data.count(_EVENT)
        if data.endswith(_END) and not self.ended.done():
            self.ended.set_result(None)

    @property
    def num_tokens(self) -> int:
        """Also right where a step's tokens were merged into one event."""
        return self.num_spaces - self.num_starts

    def _take_head(self, data: bytes) -> None:
        assert self._head is not None
        self._head += data
        head, end, body = self._head.partition(_HEAD_END)
        if not end:
            return
        if not head.startswith(b"HTTP/1.1 200") or _ERROR in body:
            self.begun.set_exception(ConnectionError(self._head[:400].decode()))
            return
        if body.count(_EVENT) < 2 and not body.endswith(_END):
            return
        self.first_s = time.perf_counter() - self._asked_s
        found = _STAGE.findall(head)
        self.stages_s = {name.decode(): float(ms) / 1000 for name, ms in found}
        self._head = None
        self.begun.set_result(None)
        self.data_received(body)


class Load:
    """Runs one plan."""

    def __init__(self, plan: Record) -> None:
        self._plan = plan
        self._url = urlsplit(plan["url"])
        self._processes = {name: _with_children(pid) for name, pid in plan["pids"].items()}
        self._request = self._bytes()
        self._connections: list[CountingConnection] = []

    async def run(self) -> Record:
        kind = self._plan["kind"]
        try:
            if kind == "tokens":
                return await self._tokens()
            if kind == "requests":
                return await self._requests()
            return await self._idle()
        finally:
            for connection in self._connections:
                connection.close()

    async def _tokens(self) -> Record:
        await self._open_all()
        await asyncio.sleep(self._plan["warm_s"])
        before, cpu, began_s = self._counts(), self._cpu_s(), time.perf_counter()
        await asyncio.sleep(self._plan["seconds"])
        wall_s, after, cpu_after = time.perf_counter() - began_s, self._counts(), self._cpu_s()
        counted = {name: after[name] - before[name] for name in before}
        return {"wall_s": wall_s, **counted, "cpu_s": _less(cpu_after, cpu)}

    async def _requests(self) -> Record:
        clients = [await self._connect() for _ in range(self._plan["num_streams"])]
        warm = await asyncio.gather(
            *(self._ask_for(each, self._plan["warm_s"]) for each in clients)
        )
        cpu, began_s = self._cpu_s(), time.perf_counter()
        gap_s = self._plan["spread_s"] / len(clients)
        asked = [
            self._ask_for(each, self._plan["seconds"], index * gap_s)
            for index, each in enumerate(clients)
        ]
        times = [pair for pairs in await asyncio.gather(*asked) for pair in pairs]
        wall_s = time.perf_counter() - began_s
        return {
            "wall_s": wall_s,
            "num_requests": len(times),
            "num_sent": len(times) + sum(map(len, warm)),
            "first_s": [first_s for first_s, _ in times],
            "stages_s": [stages_s for _, stages_s in times],
            "cpu_s": _less(self._cpu_s(), cpu),
        }

    async def _idle(self) -> Record:
        before = self._memory()
        await self._open_all()
        await asyncio.sleep(self._plan["warm_s"])
        return {"memory_bytes": _less(self._memory(), before)}

    async def _ask_for(
        self, client: CountingConnection, seconds: float, after_s: float = 0.0
    ) -> list[tuple[float, dict[str, float]]]:
        """Times to the first token, and their stages, of the requests that begin in these
        seconds."""
        times, end_s = [], time.perf_counter() + seconds
        await asyncio.sleep(after_s)
        while time.perf_counter() < end_s:
            client.ask(self._request)
            await client.begun
            times.append((client.first_s, client.stages_s))
            await client.ended
        return times

    async def _open_all(self) -> None:
        """Begin all streams, a few at once; returns when each has its first token."""
        count = self._plan["num_streams"]
        async with asyncio.timeout(_OPEN_TIMEOUT_S):
            for start in range(0, count, _CONNECT_AT_ONCE):
                batch = [await self._connect() for _ in range(min(_CONNECT_AT_ONCE, count - start))]
                for connection in batch:
                    connection.ask(self._request)
                for connection in batch:
                    await connection.begun

    async def _connect(self) -> CountingConnection:
        loop = asyncio.get_running_loop()
        host, _, port = self._url.netloc.rpartition(":")
        _, connection = await loop.create_connection(CountingConnection, host, int(port))
        self._connections.append(connection)
        return connection

    def _counts(self) -> Record:
        own = time.process_time()
        names = ("num_tokens", "num_events", "num_bytes")
        sums = {name: sum(getattr(each, name) for each in self._connections) for name in names}
        return {**sums, "client_cpu_s": own}

    def _cpu_s(self) -> dict[str, float]:
        return {name: sum(map(_cpu_s, every)) for name, every in self._processes.items()}

    def _memory(self) -> dict[str, float]:
        return {
            name: sum(each.memory_full_info().pss for each in every)
            for name, every in self._processes.items()
        }

    def _bytes(self) -> bytes:
        body = json.dumps(self._plan["body"]).encode()
        headers = {
            "Host": self._url.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self._plan["headers"],
        }
        lines = [f"{name}: {text}" for name, text in headers.items()]
        return "\r\n".join([f"POST {self._url.path} HTTP/1.1", *lines, "", ""]).encode() + body


def _with_children(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _less(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: round(after[name] - before[name], 4) for name in after}


def main() -> None:
    """Entry point of `python -m bench.gateway.load_client`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(Load(json.loads(line)).run())), flush=True)


if __name__ == "__main__":
    main()
