"""Two whole stacks as two regions behind a real Envoy, one of which is lost at once."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from baton.localstack.home import Home
from services.edge.discovery import GatewayReplica, GatewayState, Location
from tests.chaos.streams import TIMEOUT_S, story
from tests.e2e.conftest import Stack
from tests.integration.edge.edge_load import CHAT
from tests.integration.edge.edge_stack import HOME, Edge

NUM_STREAMS = 4
NUM_NEW = 20
# A client waits no longer for the end of a stream that nobody goes on with.
MAX_END_S = 10.0
DONE = "done"


@dataclass(frozen=True)
class RealGateway:
    """The gateway of a stack, as the control plane is told of it."""

    stack: Stack
    place: Location

    @property
    def replica(self) -> GatewayReplica:
        port = urlsplit(self.stack.base_url).port
        assert port is not None
        return GatewayReplica("127.0.0.1", port, self.place, GatewayState.READY)


def region(folder: Path, keys_of: Home | None = None) -> Stack:
    """A small stack; it has the keys of another one."""
    home = Home(folder)
    home.create()
    if keys_of is not None:
        shutil.copy(keys_of.secret, home.secret)
        shutil.copy(keys_of.registry, home.registry)
    return Stack(folder, "--dtype", "float32", "--decode", "1").start()


def lose(stack: Stack) -> None:
    """End every process of a stack at once, the supervisor first."""
    for pid in stack.all_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert stack.process is not None
    stack.process.wait()


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    near = region(tmp_path / "near")
    far = region(tmp_path / "far", near.home)
    yield near, far
    for stack in (near, far):
        assert stack.process is not None
        if stack.process.poll() is None:
            stack.interrupt()


class Running:
    """A stream that is being read; `outcome` is DONE, or the error that it ended with."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.has_begun = asyncio.Event()
        self._reading = asyncio.create_task(self._read(http))

    async def outcome(self) -> str:
        return await self._reading

    async def _read(self, http: httpx.AsyncClient) -> str:
        line = ""
        try:
            async with http.stream("POST", CHAT, json=story(max_tokens=1500)) as answer:
                async for line in answer.aiter_lines():
                    if '"content"' in line:
                        self.has_begun.set()
        except httpx.HTTPError as error:
            return type(error).__name__
        return line or DONE


async def test_streams_of_a_lost_region_end_with_an_error_and_new_ones_never_notice(
    regions: tuple[Stack, Stack],
) -> None:
    near, far = regions
    gateways: Any = [RealGateway(near, HOME), RealGateway(far, Location("there"))]
    edge = Edge(gateways)
    await edge.start_plane()
    try:
        await edge.start_envoy()
        head = {"authorization": f"Bearer {near.api_key}"}
        async with httpx.AsyncClient(base_url=edge.root, headers=head, timeout=TIMEOUT_S) as http:
            running = [Running(http) for _ in range(NUM_STREAMS)]
            for stream in running:
                await stream.has_begun.wait()
            lose(near)
            async with asyncio.timeout(MAX_END_S):
                ended = [await stream.outcome() for stream in running]
            assert ended == ["RemoteProtocolError"] * NUM_STREAMS
            body = story(max_tokens=8)
            new = [http.post(CHAT, json=body) for _ in range(NUM_NEW)]
            answers = await asyncio.gather(*new)
    finally:
        await edge.kill_envoy()
        await edge.stop_plane()
    assert [answer.status_code for answer in answers] == [200] * NUM_NEW
    assert all(answer.text.rstrip().endswith("[DONE]") for answer in answers)
