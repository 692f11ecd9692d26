"""Several processes of one gateway: one port, one page, one drain, and none falls with another."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from baton.runtime.environment import to_environment
from services.gateway.settings import PREFIX, GatewaySettings
from tests.integration.gateway.gateway_stack import Stack, running_fakes
from tests.unit.gateway.fakes import KEY

# Within the first credit: the fake worker counts no credit by gateway.
TEXT = "The baton is passed on, and never dropped."
BODY = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Go on"}],
    "max_tokens": 60,
    "stream": True,
}
OPEN = "baton_gateway_open_requests"
TOKENS = "vllm:request_generation_tokens_count"
HEADERS = {"Authorization": f"Bearer {KEY}"}


@dataclass
class Gateway:
    """The processes and what they have told."""

    process: asyncio.subprocess.Process
    stack: Stack
    port: int = 0
    admin_port: int = 0

    async def told(self, event: str) -> dict[str, Any]:
        """The next line of this event. The stream of lines is read only here."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            told: dict[str, Any] = json.loads(line)
            if told["event"] == event:
                return told
        raise AssertionError(f"ended without {event}")

    async def streamed(self, after_first: asyncio.Event | None = None) -> str:
        """One stream over a connection of its own."""
        text = ""
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", url, json=BODY, headers=HEADERS) as answer,
        ):
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    text += "".join(each["delta"].get("content") or "" for each in choices)
                    if after_first is not None:
                        after_first.set()
        return text

    async def begin_streams(self, count: int) -> list[asyncio.Task[str]]:
        """Streams whose first tokens are there."""
        begun = [asyncio.Event() for _ in range(count)]
        streams = [asyncio.create_task(self.streamed(each)) for each in begun]
        for each in begun:
            await each.wait()
        return streams

    async def page(self, client: httpx.AsyncClient, path: str) -> httpx.Response:
        return await client.get(f"http://127.0.0.1:{self.admin_port}{path}")

    async def numbers(self, client: httpx.AsyncClient, metric: str) -> dict[str, float]:
        """A metric by process."""
        text = (await self.page(client, "/metrics")).text
        return {
            sample.labels["process"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == metric
        }


@contextlib.asynccontextmanager
async def two_processes(folder: Path, **settings: Any) -> AsyncIterator[Gateway]:
    async with running_fakes(folder) as (stack, own):
        configured = GatewaySettings(**{**own, "processes": 2, **settings})
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.gateway"),
            env={**os.environ, **to_environment(configured, PREFIX)},
            stderr=asyncio.subprocess.PIPE,
        )
        gateway = Gateway(process, stack)
        try:
            async with asyncio.timeout(100):
                told = await gateway.told("serving")
                gateway.port, gateway.admin_port = told["port"], told["admin_port"]
                yield gateway
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def listening_ports(pid: int) -> set[int]:
    """The ports on which a process listens, itself or for others."""
    sockets = psutil.Process(pid).net_connections("tcp")
    return {each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN}


async def until_both_serve(gateway: Gateway, client: httpx.AsyncClient) -> dict[str, int]:
    """The process ids by number, once both processes are ready."""
    for worker in gateway.stack.workers.values():
        worker.texts, worker.step_s = [TEXT], 0.01
    told = [await gateway.told("process_started") for _ in range(2)]
    while len(await gateway.numbers(client, OPEN)) < 2:
        await asyncio.sleep(0.05)
    while len(await gateway.numbers(client, TOKENS)) < 2:
        with contextlib.suppress(AssertionError, httpx.HTTPError):
            await asyncio.gather(gateway.streamed(), gateway.streamed())
    return {str(each["process"]): each["pid"] for each in told}


async def test_a_process_that_dies_takes_no_other_with_it_and_all_drain_together(
    tmp_path: Path,
) -> None:
    async with two_processes(tmp_path) as gateway, httpx.AsyncClient(timeout=60) as client:
        pids = await until_both_serve(gateway, client)
        for worker in gateway.stack.workers.values():
            worker.step_s = 0.05
        streams = await gateway.begin_streams(6)
        # On a busy machine one process may stand still, and the other takes them all meanwhile.
        while not all((num_open := await gateway.numbers(client, OPEN)).values()):
            streams += await gateway.begin_streams(2)
        assert sum(num_open.values()) == len(streams)
        assert len((await gateway.page(client, "/requests")).json()) == len(streams)
        os.kill(pids["1"], signal.SIGKILL)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        assert ended.count(TEXT) == num_open["2"]

        assert (await gateway.told("process_started"))["process"] == 1
        # A socket of a process that has died would take connections, and nobody would answer.
        assert listening_ports(gateway.process.pid) == {gateway.port, gateway.admin_port}
        streams = await gateway.begin_streams(2)
        gateway.process.terminate()
        assert await asyncio.gather(*streams) == [TEXT] * 2
        assert await gateway.process.wait() == 0
