"""A real core process with a FakeRunner behind a ProcessEngineClient."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.client import CoreDied, CoreNotStarted
from baton.engine.protocol.messages import Abort, Bind, Credit, Start
from baton.system.clock import SystemClock
from baton.testing.engine_driver import add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.worker.core_watch import MAX_TICK_S, CoreWatch, WatchLimits

FAKE_CORE = EngineSpec("baton.testing.fake_core")
RANKED_CORE = EngineSpec("tests.integration.workers.ranked_core")


@asynccontextmanager
async def core(*args: str) -> AsyncIterator[ProcessEngineClient]:
    client = await ProcessEngineClient.start(FAKE_CORE, args)
    try:
        yield client
    finally:
        await client.close()
        assert not is_alive(client.pid)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def open_fds() -> set[tuple[str, str]]:
    """Each open descriptor with what it is; earlier tests' may close meanwhile."""
    gc.collect()
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


async def left_open(before: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What was opened since then and stays; the loop closes some a few turns later."""
    left = open_fds() - before
    for _ in range(500):
        if not left:
            break
        await asyncio.sleep(0.01)
        left = open_fds() - before
    return left


async def read_tokens(client: ProcessEngineClient, num_finished: int) -> dict[int, list[int]]:
    """Tokens by sequence, until so many sequences have finished."""
    tokens: dict[int, list[int]] = {}
    while num_finished:
        events = await client.events()
        for seq_id, token in zip(events.token_seq_ids, events.token_ids, strict=True):
            tokens.setdefault(seq_id, []).append(token)
        num_finished -= len(events.finished)
    return tokens


async def test_tokens_come_from_the_child_process():
    async with core() as client:
        adds = [add_sequence(i, range(10 * i + 1), max_tokens=20) for i in range(4)]
        for add in adds:
            client.send(add)
        tokens = await read_tokens(client, 4)
        assert client.info.num_blocks == 256
        for i, add in enumerate(adds):
            assert tokens[i] == FakeRunner().lone_run(range(10 * i + 1), add.sampling)


async def test_both_processes_see_one_pool():
    async with core() as client:
        client.send(add_sequence(1, range(20), kind="prefill"))
        events = await client.events()
        source = events.started[0].rows
        while not events.token_ids:
            events = await client.events()
        client.send(add_sequence(2, range(20), kind="remote", cache_key=b"x" * 32))
        client.send(Bind(2))
        while not events.bound:
            events = await client.events()
        size = client.info.kv_spec.row_bytes
        for here, there in zip(source, events.bound[0].rows, strict=True):
            row = bytes(client.pool[here * size : (here + 1) * size])
            client.pool[there * size : (there + 1) * size] = row
        add = add_sequence(2, [])
        expected = FakeRunner().lone_run(range(20), add.sampling)
        client.send(Start(2, expected[0]))
        assert await read_tokens(client, 1) == {2: expected[1:]}


async def test_a_killed_core_names_the_requests_of_its_last_step():
    async with core("--step-s", "60") as client:
        client.send(add_sequence(1, range(5)))
        client.send(add_sequence(2, range(5)))
        client.send(add_sequence(3, range(5), credit=0))
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(catch_death(client))
            while not client.progress().is_busy:
                await asyncio.sleep(0)
            os.kill(client.pid, signal.SIGKILL)
        assert reading.result().suspect_request_ids == ("request-1", "request-2")
        client.send(Abort(1))
        with pytest.raises(CoreDied):
            await client.events()


async def catch_death(client: ProcessEngineClient) -> CoreDied:
    with pytest.raises(CoreDied) as death:
        while True:
            await client.events()
    return death.value


@pytest.mark.parametrize("way", ["closed", "killed", "killed by others"])
async def test_children_of_a_core_end_with_it(way: str):
    client = await ProcessEngineClient.start(RANKED_CORE)
    (rank,) = Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split()
    if way == "killed":
        client.kill()
    elif way == "killed by others":
        os.kill(client.pid, signal.SIGKILL)
    if way != "closed":
        await catch_death(client)
    await client.close()
    while is_running(int(rank)):
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """A dead process that nobody has waited for does not run."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_core_killed_while_idle_has_no_suspects():
    async with core() as client:
        client.send(add_sequence(1, range(5)))
        await read_tokens(client, 1)
        while client.progress().is_busy:
            await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGKILL)
        assert (await catch_death(client)).suspect_request_ids == ()


@asynccontextmanager
async def watched(client: ProcessEngineClient, **limits: float) -> AsyncIterator[CoreWatch]:
    """The core's watch while it runs."""
    watch = CoreWatch(client, SystemClock(), WatchLimits(**limits))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run())
        yield watch
        running.cancel()


async def stalled(watch: CoreWatch) -> None:
    async with asyncio.timeout(60):
        while not watch.is_stalled:
            await asyncio.sleep(0.02)


async def test_a_core_that_hangs_in_a_step_is_killed_and_reported():
    limits = {"stall_s": 0.2, "first_step_s": 0.2, "hang_s": 0.2}
    async with core("--step-s", "60") as client, watched(client, **limits):
        client.send(add_sequence(1, range(5)))
        assert (await catch_death(client)).suspect_request_ids == ("request-1",)


async def test_an_idle_core_that_stops_is_found_by_a_probe_and_forgiven_when_it_goes_on():
    async with core() as client, watched(client, stall_s=0.3, probe_s=0.2) as watch:
        while client.progress().expected_s is None:  # the first probe has been measured
            await asyncio.sleep(0.02)
        os.kill(client.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while Path(f"/proc/{client.pid}/stat").read_text().split()[2] != "T":
                await asyncio.sleep(0.01)
        await stalled(watch)
        os.kill(client.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            while watch.is_stalled:
                await asyncio.sleep(0.02)
        client.send(add_sequence(1, range(5)))
        await read_tokens(client, 1)


async def test_an_idle_core_is_not_taken_for_a_hung_one():
    """Told of much more time than a stall takes; each probe may take as long as it likes."""
    async with core() as client:
        watch = CoreWatch(client, SystemClock(), WatchLimits(stall_s=0.5, probe_s=0.05))
        client.send(add_sequence(1, range(5), credit=2))
        await idle(client)
        for _ in range(20):
            watch.tick(MAX_TICK_S)
            assert not watch.is_stalled
            await idle(client)
        client.send(Credit(1, 100))
        await read_tokens(client, 1)


async def idle(client: ProcessEngineClient) -> None:
    """Until the core has done all that it was told."""
    async with asyncio.timeout(60):
        while (now := client.progress()).is_busy or now.num_commands < client.num_commands_sent:
            await asyncio.sleep(0.001)


async def test_the_next_life_knows_who_ran_when_front_and_core_died_together(tmp_path: Path):
    page_file = tmp_path / "page"
    first = await ProcessEngineClient.start(FAKE_CORE, ["--step-s", "60"], page_file=page_file)
    first.send(add_sequence(1, range(5)))
    while not first.progress().is_busy:
        await asyncio.sleep(0.01)
    left_behind = page_file.read_bytes()
    first.kill()
    await first.close()
    assert not page_file.exists(), "a front that lives through it has told who ran"
    page_file.write_bytes(left_behind)
    second = await ProcessEngineClient.start(FAKE_CORE, page_file=page_file)
    assert second.last_suspects == ("request-1",)
    assert second.progress().request_ids == ()
    await second.close()


async def test_a_core_that_cannot_load_says_why():
    with pytest.raises(CoreNotStarted, match="the disk ate it"):
        await ProcessEngineClient.start(FAKE_CORE, ["--refuse", "the disk ate it"])


async def test_a_core_that_crashes_at_start_leaves_nothing_behind():
    before = open_fds()
    with pytest.raises(CoreNotStarted, match="exited with 2"):
        await ProcessEngineClient.start(FAKE_CORE, ["--no-such-option"])
    assert await left_open(before) == set()


async def test_close_leaves_no_descriptors():
    async with core():
        pass
    await asyncio.sleep(0)
    before = open_fds()
    async with core() as client:
        client.send(add_sequence(1, range(5)))
        await client.events()
    del client  # the last user of the mapped pool and page
    assert await left_open(before) == set()


async def test_a_core_ends_with_its_front():
    front = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FRONT, stdout=asyncio.subprocess.PIPE
    )
    assert front.stdout is not None
    core_pid = int(await front.stdout.readline())
    assert is_alive(core_pid)
    front.kill()
    await front.wait()
    while is_alive(core_pid):
        await asyncio.sleep(0.01)


FRONT = """
import asyncio
from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.system.clock import SystemClock
from baton.testing.engine_driver import add_sequence

async def main():
    core = EngineSpec("baton.testing.fake_core")
    client = await ProcessEngineClient.start(core, ["--step-s", "60"])
    client.send(add_sequence(1, range(5)))
    while not client.progress().is_busy:
        await asyncio.sleep(0)
    print(client.pid, flush=True)
    await client.events()

asyncio.run(main())
"""


def test_a_core_is_served_on_the_loop_that_workers_use() -> None:
    """uvloop's transports are no subclasses of asyncio's."""

    async def scenario() -> None:
        async with core() as client:
            assert client.info.num_blocks

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_a_front_on_uvloop_reads_tokens_and_the_death_of_its_core():
    async def main() -> None:
        async with core() as client:
            client.send(add_sequence(1, range(5)))
            assert len((await read_tokens(client, 1))[1]) == 8
            os.kill(client.pid, signal.SIGKILL)
            await catch_death(client)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
