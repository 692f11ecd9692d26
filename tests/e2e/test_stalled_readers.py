"""Clients that ask and do not read: what each costs in memory, and what they cost the others."""

import asyncio
import contextlib
import json
import math
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest

from loadtest.reporting.latency import percentile
from tests.e2e.conftest import PATIENCE_S, Stack, patience, wait_until

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
NUM_STALLED = int(os.environ.get("BATON_TEST_STALLED", "500" if IS_LONG else "8"))
NUM_READERS = 8
READ_TOKENS = 300 if IS_LONG else 60
# With a few readers and a few gaps: what a process's heap grows by anyway is shared by eight, and
# what else the machine does shows in the gaps.
MAX_READER_KIB = 128 if IS_LONG else 512
MAX_GAP_RATIO = 1.5 if IS_LONG else 10.0


@pytest.fixture
def patient(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """A stack that cuts nobody off; in the long run one with room for hundreds of streams."""
    if not IS_LONG:
        yield request.getfixturevalue("small")
        return
    sizes = ("--prefill", "1", "--decode", "1", "--kv-memory", "256MiB")
    stack = Stack(tmp_path / "home", *sizes, "--dtype", "float32")
    stack.environment |= patience()
    stack.start()
    yield stack
    assert stack.interrupt() == 0, stack.output.read_text()[-3000:]


async def ask(stack: Stack, num_tokens: int, question: str) -> socket.socket:
    """A connection with a small buffer on which a stream was asked for."""
    url, loop = httpx.URL(stack.base_url), asyncio.get_running_loop()
    body = {
        "model": "baton-demo",
        "stream": True,
        "max_tokens": num_tokens,
        "min_tokens": num_tokens,
        "messages": [{"role": "user", "content": question}],
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
        f"authorization: Bearer {stack.api_key}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, (url.host, url.port))
    await loop.sock_sendall(client, head.encode() + data)
    return client


async def read_times(stack: Stack, num_tokens: int, question: str) -> list[float]:
    """When the pieces of a whole answer came."""
    loop, times, end = asyncio.get_running_loop(), [], b""
    with await ask(stack, num_tokens, question) as client:
        while b"[DONE]" not in end:
            piece = await loop.sock_recv(client, 65_536)
            assert piece, end
            times.append(time.monotonic())
            end = (end + piece)[-400:]
    return times


async def gap_p95_s(stack: Stack, name: str) -> float:
    """Between the pieces that readers get, from when all of them are under way to the first end;
    not a number where they were never all under way, as short answers may be on a busy machine."""
    readers = (read_times(stack, READ_TOKENS, f"{name} {n}?") for n in range(NUM_READERS))
    answers = await asyncio.gather(*readers)
    begun, ended = max(times[0] for times in answers), min(times[-1] for times in answers)
    gaps = [
        after - before for times in answers for before, after in pairwise(times)
        if begun <= before and after <= ended
    ]  # fmt: skip
    assert len(gaps) > READ_TOKENS or not IS_LONG
    p95 = percentile(gaps, 95)
    return math.nan if p95 is None else p95


@contextlib.asynccontextmanager
async def stalled(stack: Stack) -> AsyncIterator[None]:
    """Readers that never read; all of them are parked and hold no block."""
    clients: list[socket.socket] = []
    try:
        limit_s = time.monotonic() + PATIENCE_S
        for number in range(NUM_STALLED):
            clients.append(await ask(stack, 1900, f"a story, {number}"))
            wait_until(lambda: num_open(stack) == len(clients))
        while num_parked(stack) < NUM_STALLED or any(stack.used_blocks().values()):
            assert time.monotonic() < limit_s
            assert num_open(stack) == NUM_STALLED, "some were refused"
            await asyncio.sleep(0.5)
        yield
    finally:
        for client in clients:
            client.close()


def num_open(stack: Stack) -> float:
    return stack.metric("gateway", "baton_gateway_open_requests")


def num_parked(stack: Stack) -> float:
    return sum(stack.metric(name, "baton_num_requests_parked") for name in stack.workers())


def private_kib(stack: Stack) -> dict[str, int]:
    """By process: memory of its own, without the KV pool, whose size is a setting."""
    names = {pid: name for name, pid in stack.pids().items()}
    sizes = {}
    for pid in stack.all_pids():
        parent = names.get(psutil.Process(pid).ppid(), "")
        sizes[names.get(pid, f"child of {parent}")] = _private_kib(pid)
    return sizes


def _private_kib(pid: int) -> int:
    total, is_pool = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_pool = "memfd:baton-kv-pool" in line
        elif line.startswith(("Private_Clean:", "Private_Dirty:")) and not is_pool:
            total += int(line.split()[1])
    return total


async def warm_up(stack: Stack) -> None:
    """As many streams as will stall, each read to its end, a few at a time."""
    at_once = asyncio.Semaphore(4 * NUM_READERS)

    async def one(number: int) -> None:
        async with at_once:
            await read_times(stack, 40, f"a story, {number}")

    await asyncio.gather(*(one(number) for number in range(NUM_STALLED)))


async def measured(stack: Stack) -> tuple[dict[str, float], list[float]]:
    """KiB by process that one stalled reader costs; p95 of gaps before, beside, after them."""
    await warm_up(stack)
    gaps = [await gap_p95_s(stack, "before")]
    before = private_kib(stack)
    async with stalled(stack):
        now = private_kib(stack)
        gaps.append(await gap_p95_s(stack, "beside"))
        assert num_parked(stack) == NUM_STALLED
    wait_until(lambda: not num_open(stack))
    gaps.append(await gap_p95_s(stack, "after"))
    return {name: (now[name] - before[name]) / NUM_STALLED for name in now}, gaps


@pytest.mark.timeout(7200 if IS_LONG else 600)
def test_readers_that_stall_cost_little_memory_and_the_others_no_time(patient: Stack) -> None:
    kib, gaps = asyncio.run(measured(patient))
    wait_until(lambda: not any(patient.used_blocks().values()))
    assert num_parked(patient) == 0
    ratio = gaps[1] / ((gaps[0] + gaps[2]) / 2)
    print(f"\n{NUM_STALLED} stalled readers: {sum(kib.values()):.0f} KiB each")
    print("  " + ", ".join(f"{name} {size:.1f}" for name, size in kib.items() if size >= 0.1))
    told = " / ".join(f"{gap * 1000:.1f}" for gap in gaps)
    print(
        f"token gap p95 of {NUM_READERS} others, before / beside / after: {told} ms, {ratio:.2f}x"
    )
    assert sum(kib.values()) <= MAX_READER_KIB
    assert ratio <= MAX_GAP_RATIO or (math.isnan(ratio) and not IS_LONG)
