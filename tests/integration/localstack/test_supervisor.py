"""The supervisor with real child processes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from baton.localstack.supervisor import ServiceSpec, StartFailed, Supervisor

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"


def spec(name: str, code: str, rank: int = 0) -> ServiceSpec:
    return ServiceSpec(name, [sys.executable, "-c", code], {}, rank)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_service_that_dies_is_named_with_its_last_lines_and_restarted(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    supervisor = Supervisor([spec("sleeper", SLEEPER)], tmp_path, lines.append)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await until(lambda: b"up" in _log(tmp_path))
        first = supervisor.pids()["sleeper"]
        os.kill(first, signal.SIGKILL)
        first_start_s = supervisor.rows()["sleeper"]["started_unix_s"]
        await until(lambda: supervisor.pids().get("sleeper", first) != first)
        assert supervisor.rows()["sleeper"]["num_restarts"] == 1
        assert supervisor.rows()["sleeper"]["started_unix_s"] > first_start_s
        await supervisor.stop()
    assert "sleeper ended with signal SIGKILL" in lines[0]
    assert lines[1].strip() == "up"
    assert supervisor.pids() == {}


async def test_services_stop_in_the_order_of_their_rank(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def stop(*_): open({path!r}, 'a').write({name!r}); sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop); print('up', flush=True); time.sleep(60)"
    )
    order = tmp_path / "order"
    specs = [
        spec(name, code.format(path=str(order), name=name), rank)
        for name, rank in (("c", 2), ("a", 0), ("b", 1))
    ]
    supervisor = Supervisor(specs, tmp_path, print)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await until(lambda: all(b"up" in _log(tmp_path, name) for name in "abc"))
        await supervisor.stop()
    assert order.read_text() == "abc"


async def test_a_misconfigured_service_ends_the_start_with_its_own_words(tmp_path: Path) -> None:
    bad = spec("bad", "import sys; print('BATON_X: unknown setting'); sys.exit(2)")
    supervisor = Supervisor([bad, spec("sleeper", SLEEPER)], tmp_path, print)
    with pytest.raises(StartFailed, match="bad: BATON_X: unknown setting"):
        await supervisor.run()
    assert supervisor.pids() == {}


async def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, pathlib\n"
        "from baton.localstack.supervisor import ServiceSpec, Supervisor\n"
        f"s = ServiceSpec('sleeper', [sys.executable, '-c', {SLEEPER!r}], {{}}, 0)\n"
        "async def main():\n"
        f"    v = Supervisor([s], pathlib.Path({str(tmp_path)!r}), print)\n"
        "    v.on_change = lambda: print(v.pids()['sleeper'], flush=True)\n"
        "    await v.run()\n"
        "asyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    child = int(await parent.stdout.readline())
    assert exists(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not _running(child))


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _log(folder: Path, name: str = "sleeper") -> bytes:
    path = folder / f"{name}.log"
    return path.read_bytes() if path.exists() else b""
