"""The programs of services.edge as they are run: from the environment, with mutual TLS."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from baton.localstack.ports import LOOPBACK, free_ports
from baton.testing.certificates import Authority, MemberFiles
from services.edge.envoy_process import find_envoy
from services.edge.http_call import NoAnswer, call
from tests.integration.edge_stack import PATIENCE_S, SmallGateway

PROGRAM = (sys.executable, "-m", "services.edge")


# Four processes start, one after the other.
pytestmark = pytest.mark.timeout(300)


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[SmallGateway]:
    running = await SmallGateway("a").start()
    yield running
    await running.kill()


async def test_both_programs_find_each_other_and_leave_when_asked(
    gateway: SmallGateway, tmp_path: Path
) -> None:
    files = Authority(tmp_path, "peers").issue(tmp_path / "member")
    ads, http, admin = free_ports(3)
    environment = {
        **os.environ,
        **files.environment(),
        "BATON_EDGE_LISTEN": f"{LOOPBACK}:{ads}",
        "BATON_EDGE_GATEWAYS": f"localhost:{gateway.port}@here/a",
        "BATON_EDGE_HTTP_LISTEN": f"{LOOPBACK}:{http}",
        "BATON_ENVOY_CONTROL_PLANE": f"{LOOPBACK}:{ads}",
        "BATON_ENVOY_ADMIN_LISTEN": f"{LOOPBACK}:{admin}",
        "BATON_ENVOY_CONCURRENCY": "1",
        "BATON_ENVOY_UNREADY_S": "0",
    }
    check_bootstrap(environment, files, tmp_path)
    with (tmp_path / "log").open("wb") as log:
        running = [
            await asyncio.create_subprocess_exec(
                *PROGRAM, *arguments, env=environment, stdout=log, stderr=log
            )
            for arguments in ((), ("envoy",))
        ]
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            while await status(http) != 200:
                assert all(process.returncode is None for process in running), said(tmp_path)
                await asyncio.sleep(0.1)
        for process in reversed(running):
            process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            statuses = [await process.wait() for process in running]
        assert statuses == [0, 0], said(tmp_path)
        assert await status(http) == 0
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.wait()


def check_bootstrap(environment: dict[str, str], files: MemberFiles, folder: Path) -> None:
    """Envoy accepts what `bootstrap` prints, which names the key and does not hold it."""
    printed = subprocess.run(
        [*PROGRAM, "bootstrap"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert files.key.read_text().splitlines()[1] not in printed
    assert json.loads(printed)["node"]["cluster"] == "edge"
    path = folder / "bootstrap.json"
    path.write_text(printed)
    checked = subprocess.run(
        [find_envoy(), "--mode", "validate", "-c", path], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr[-2000:]


async def status(port: int) -> int:
    try:
        return (await call((LOOPBACK, port), "/healthz", timeout_s=5))[0]
    except NoAnswer:
        return 0


def said(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]
