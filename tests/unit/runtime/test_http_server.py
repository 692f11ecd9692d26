"""A server in the loop of its process ends as a whole: when it is stopped, and when it fails."""

import asyncio

import pytest
from starlette.applications import Starlette

from baton.localstack.ports import LOOPBACK
from baton.runtime.http_server import LoopServer
from baton.runtime.listening_socket import listening_socket


async def test_a_server_that_cannot_start_says_so_at_once() -> None:
    bound = listening_socket(f"{LOOPBACK}:0")
    bound.close()
    serving = asyncio.create_task(LoopServer(Starlette()).run_until(asyncio.Event(), bound))
    await asyncio.wait([serving], timeout=10)
    assert serving.done()
    with pytest.raises((OSError, ValueError)):
        await serving


async def test_a_server_that_is_cancelled_leaves_nothing_running() -> None:
    own = asyncio.current_task()
    with listening_socket(f"{LOOPBACK}:0") as bound:
        serving = asyncio.create_task(LoopServer(Starlette()).run_until(asyncio.Event(), bound))
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])
        assert asyncio.all_tasks() == {own}
