"""The killable child: answers, deadlines, limits, restarts, and what it may know."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from baton.system.child import (
    ChildDied,
    ChildLimits,
    ChildProcess,
    ChildRestartsExhausted,
    ChildTimedOut,
)
from baton.system.clock import SystemClock
from tests import needs

MODULE = "child_under_test"
SOURCE = """
import os, sys, time

def build_handler(setup):
    if setup == b"broken":
        raise RuntimeError("secret text")
    if setup.startswith(b"once there is "):
        while not os.path.exists(setup.removeprefix(b"once there is ")):
            time.sleep(0.01)
    return handle, b"set up with " + setup

def handle(request):
    command, _, rest = request.partition(b" ")
    if command == b"echo":
        return rest
    if command == b"hang":
        while True:
            pass
    if command == b"die":
        os._exit(3)
    if command == b"raise":
        raise KeyError("secret text")
    if command == b"grow":
        return str(len(bytearray(int(rest)))).encode()
    if command == b"environment":
        return "\\n".join(sorted(os.environ)).encode()
    if command == b"pid":
        return str(os.getpid()).encode()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return MODULE


@pytest.fixture
async def child(module: str):
    child = ChildProcess(module, SystemClock())
    yield child
    await child.close()


async def test_answer_comes_back_for_each_request_in_order(child: ChildProcess):
    answers = await asyncio.gather(
        *(child.call(f"echo {i}".encode(), deadline_s=60) for i in range(20))
    )
    assert answers == [str(i).encode() for i in range(20)]


async def test_large_frames_pass_both_ways(child: ChildProcess):
    data = os.urandom(8 * 1024 * 1024)
    assert await child.call(b"echo " + data, deadline_s=60) == data


async def test_setup_reaches_every_fresh_child(module: str):
    child = ChildProcess(module, SystemClock(), setup=b"this")
    assert await child.start() == b"set up with this"
    with pytest.raises(ChildDied):
        await child.call(b"die", deadline_s=60)
    assert await child.start() == b"set up with this"
    await child.close()


async def test_child_past_its_deadline_is_killed_and_the_next_call_gets_a_fresh_one(
    child: ChildProcess,
):
    await child.start()
    pid = child.pid
    with pytest.raises(ChildTimedOut):
        await child.call(b"hang", deadline_s=0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await child.call(b"echo again", deadline_s=60) == b"again"


async def test_child_that_dies_is_reported_with_its_exit_code(child: ChildProcess):
    with pytest.raises(ChildDied, match="code 3"):
        await child.call(b"die", deadline_s=60)


async def test_child_killed_while_idle_is_replaced_at_the_next_call(child: ChildProcess):
    await child.start()
    process = child._process
    os.kill(child.pid, signal.SIGKILL)
    process.wait()
    assert await child.call(b"echo again", deadline_s=60) == b"again"


async def test_starts_are_bounded_in_a_window(module: str):
    child = ChildProcess(
        module, SystemClock(), limits=ChildLimits(max_starts=2, start_window_s=600)
    )
    for _ in range(2):
        with pytest.raises(ChildDied):
            await child.call(b"die", deadline_s=60)
    with pytest.raises(ChildRestartsExhausted):
        await child.call(b"echo x", deadline_s=60)


@needs.linux
async def test_memory_limit_ends_a_request_that_needs_more(module: str):
    child = ChildProcess(module, SystemClock(), limits=ChildLimits(memory_bytes=256 * 1024 * 1024))
    assert await child.call(b"grow 1000", deadline_s=60) == b"1000"
    with pytest.raises(ChildDied):
        await child.call(b"grow 1000000000", deadline_s=60)
    await child.close()


async def test_child_does_not_inherit_the_environment(module: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATON_GATEWAY_SECRET", "x")
    child = ChildProcess(module, SystemClock())
    names = (await child.call(b"environment ", deadline_s=60)).decode().split()
    assert "BATON_GATEWAY_SECRET" not in names
    assert "HOME" not in names
    await child.close()


async def test_cancelled_call_leaves_no_answer_for_the_next_one(child: ChildProcess):
    await child.start()
    task = asyncio.ensure_future(child.call(b"echo first", deadline_s=60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await child.call(b"echo second", deadline_s=60) == b"second"


async def test_a_child_that_nobody_waits_for_is_killed_and_the_next_call_gets_a_fresh_one(
    module: str,
):
    child = ChildProcess(
        module, SystemClock(), limits=ChildLimits(max_starts=2, start_window_s=600)
    )
    for _ in range(3):  # starts of this kind are not counted: the child did nothing wrong
        await child.start()
        pid = child.pid
        task = asyncio.ensure_future(child.call(b"hang", deadline_s=600))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert await child.call(b"echo again", deadline_s=60) == b"again"
    await child.close()


async def test_callers_that_leave_while_a_child_starts_cost_it_no_start(
    module: str, tmp_path: Path
):
    gate = tmp_path / "gate"
    limits = ChildLimits(max_starts=2, start_window_s=600)
    child = ChildProcess(
        module, SystemClock(), setup=b"once there is " + bytes(gate), limits=limits
    )
    try:
        for _ in range(3):
            call = asyncio.ensure_future(child.call(b"echo x", deadline_s=60))
            while child.pid is None and not call.done():
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert child.pid is None  # it was starting
        gate.touch()
        assert await child.call(b"echo x", deadline_s=60) == b"x"
    finally:
        await child.close()


async def test_a_child_that_answers_soon_outlives_a_caller_that_left(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("baton.system.child.ABANDON_GRACE_S", 60)
    await child.start()
    pid = child.pid
    task = asyncio.ensure_future(child.call(b"echo first", deadline_s=60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert child.pid == pid


async def test_failing_child_prints_no_text_of_the_error(module: str, capfd: pytest.CaptureFixture):
    child = ChildProcess(module, SystemClock())
    with pytest.raises(ChildDied):
        await child.call(b"raise", deadline_s=60)
    with pytest.raises(ChildDied):
        await ChildProcess(module, SystemClock(), setup=b"broken").start()
    printed = capfd.readouterr().err
    assert "KeyError" in printed
    assert "secret text" not in printed


async def test_child_ends_with_its_parent(module: str):
    program = (
        "import asyncio, os\n"
        "from baton.system.child import ChildProcess\n"
        "from baton.system.clock import SystemClock\n"
        "async def main():\n"
        f"    child = ChildProcess({module!r}, SystemClock())\n"
        "    await child.start()\n"
        "    print(child.pid, flush=True)\n"
        "    await child.call(b'hang', deadline_s=60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(60):
        while _is_running(pid):
            await asyncio.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_child_works_under_uvloop(module: str):
    async def main() -> bytes:
        child = ChildProcess(module, SystemClock())
        answer = await child.call(b"echo hello", deadline_s=60)
        with pytest.raises(ChildTimedOut):
            await child.call(b"hang", deadline_s=0.05)
        await child.close()
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == b"hello"


COUNTS_FORKS = """
import asyncio, ctypes, uvloop
from baton.system.child import ChildProcess
from baton.system.clock import SystemClock

num_forks = 0

@ctypes.CFUNCTYPE(None)
def before_fork():
    global num_forks
    num_forks += 1

async def main():
    child = ChildProcess("child_under_test", SystemClock())
    assert await child.call(b"echo x", deadline_s=60) == b"x"
    await child.close()

ctypes.CDLL(None).__register_atfork(before_fork, None, None, None)
uvloop.run(main())
print(num_forks)
"""


@needs.linux
def test_starting_a_child_runs_no_fork_handlers(module: str):
    """gRPC has some; in a process with calls in flight they made the child crash before exec."""
    counted = subprocess.run(
        [sys.executable, "-c", COUNTS_FORKS], capture_output=True, text=True, check=True
    )
    assert counted.stdout == "0\n"
