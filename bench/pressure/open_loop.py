"""Streams at set times or by a set number of clients: JSON plans on stdin, one answer line each.

`python -m bench.pressure.open_loop`; a process of its own. With `arrivals` a request is sent at its
time, whether earlier ones were answered or not. With `concurrency` so many clients ask one request
after the other for `seconds`. Every answer is told: its status, its times, what a refusal says.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import uvloop

from loadtest.raw_client import Connection, StreamedAnswer

Record = dict[str, Any]
# Of an error event in a stream, as `StreamedAnswer` describes it.
_CODE = re.compile(r"'code': '(\w+)'")
_TOLD_HEADERS = (b"retry-after", b"x-request-id")


class PressureConnection(Connection):
    """A connection that keeps what a refusal says in its headers."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: dict[str, str] = {}

    async def ask(self, request: bytes) -> StreamedAnswer:
        self.headers = {}
        return await super().ask(request)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in _TOLD_HEADERS:
            self.headers[name.decode().lower()] = value.decode()


class Load:
    """Sends one plan's requests and collects what came of them."""

    def __init__(self, plan: Record) -> None:
        self._plan = plan
        self._url = urlsplit(plan["url"])
        self._idle: list[PressureConnection] = []
        self._began_at = 0.0
        self.records: list[Record] = []

    async def run(self) -> None:
        self._began_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            if "concurrency" in self._plan:
                requests = iter(self._plan["requests"])
                for _ in range(self._plan["concurrency"]):
                    tasks.create_task(self._ask_again_and_again(requests))
            else:
                for request in self._plan["requests"]:
                    await asyncio.sleep(request["at_s"] - self._now())
                    tasks.create_task(self._ask(request, request["at_s"]))
        for connection in self._idle:
            connection.close()

    async def _ask_again_and_again(self, requests: Iterator[Record]) -> None:
        while self._now() < self._plan["seconds"]:
            await self._ask(next(requests), self._now())

    async def _ask(self, request: Record, at_s: float) -> None:
        record: Record = {"tenant": request["tenant"], "at_s": at_s}
        self.records.append(record)
        try:
            async with asyncio.timeout(self._plan["timeout_s"]):
                connection = await self._connection()
                answer = await connection.ask(self._bytes(request))
        except (OSError, TimeoutError) as error:
            record |= {"status": 0, "code": repr(error)[:100]}
            return
        record |= self._told(answer, connection.headers, request["body"]["max_tokens"])
        if connection.is_open:
            self._idle.append(connection)

    async def _connection(self) -> PressureConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        host, _, port = self._url.netloc.rpartition(":")
        _, fresh = await loop.create_connection(PressureConnection, host, int(port))
        return fresh

    def _told(self, answer: StreamedAnswer, headers: dict[str, str], max_tokens: int) -> Record:
        told = {
            "sent_s": answer.began_at - self._began_at,
            "ended_s": answer.ended_at - self._began_at,
            "status": answer.status,
            "request_id": headers.get("x-request-id", ""),
        }
        described = answer.describe()
        if answer.status == 200 and "error" not in described:
            is_whole = described["num_output_tokens"] == max_tokens
            first_s = described["text_times_s"][0] - self._began_at
            return told | {"first_s": first_s, "code": "" if is_whole else "cut"}
        if answer.status == 200:
            found = _CODE.search(described["error"])
            return told | {"code": f"then {found[1] if found else described['error']}"}
        code = json.loads(answer.rest or b"{}").get("error", {}).get("code", "")
        return told | {"code": code, "retry_after_s": float(headers.get("retry-after", 0))}

    def _bytes(self, request: Record) -> bytes:
        body = json.dumps(request["body"]).encode()
        headers = {
            "Host": self._url.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **request["headers"],
        }
        lines = [f"{name}: {text}" for name, text in headers.items()]
        return "\r\n".join([f"POST {self._url.path} HTTP/1.1", *lines, "", ""]).encode() + body

    def _now(self) -> float:
        return time.perf_counter() - self._began_at


async def run_plan(plan: Record) -> Record:
    """Run one plan; returns its records and the client's own share of a core."""
    load, cpu_s = Load(plan), time.process_time()
    await load.run()
    wall_s = max(each.get("ended_s", 0.0) for each in load.records)
    return {"records": load.records, "client_cpu": (time.process_time() - cpu_s) / wall_s}


def main() -> None:
    """Entry point of `python -m bench.pressure.open_loop`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(run_plan(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
