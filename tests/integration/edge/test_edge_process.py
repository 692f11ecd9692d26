"""The control plane and Envoy as they are run: from the environment, with mutual TLS."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime.http_call import NoAnswer, call
from baton.testing.certificates import Authority, MemberFiles
from services.envoy.envoy_process import find_envoy
from tests.integration.edge.edge_load import Load
from tests.integration.edge.edge_stack import PATIENCE_S, SmallGateway

PLANE, ENVOY = "services.edge", "services.envoy"
# One certificate for both, which names both services.
_NAMES = "DNS:baton,DNS:edge.baton,DNS:envoy.baton"


# Four processes start, one after the other.
pytestmark = pytest.mark.timeout(300)


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[SmallGateway]:
    running = await SmallGateway("a").start()
    yield running
    await running.kill()


class Programs:
    """The control plane and an Envoy, with certificates, told of `gateways`."""

    def __init__(self, gateways: Sequence[int], folder: Path) -> None:
        self.folder = folder
        self.files = Authority(folder, "peers").issue(folder / "member", _NAMES)
        ads, self.http, admin = free_ports(3)
        self.environment = {
            **os.environ,
            **self.files.environment(),
            "BATON_TLS_PER_SERVICE": "true",
            "BATON_EDGE_LISTEN": f"{LOOPBACK}:{ads}",
            "BATON_EDGE_GATEWAYS": ",".join(f"localhost:{port}@here/a" for port in gateways),
            "BATON_EDGE_POLL_S": "0.2",
            "BATON_EDGE_HTTP_LISTEN": f"{LOOPBACK}:{self.http}",
            "BATON_ENVOY_CONTROL_PLANE": f"{LOOPBACK}:{ads}",
            "BATON_ENVOY_ADMIN_LISTEN": f"{LOOPBACK}:{admin}",
            "BATON_ENVOY_CONCURRENCY": "1",
            "BATON_ENVOY_UNREADY_S": "0",
        }
        self._all: list[asyncio.subprocess.Process] = []

    async def start(self, module: str) -> asyncio.subprocess.Process:
        with (self.folder / "log").open("ab") as log:
            started = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, env=self.environment, stdout=log, stderr=log
            )
        self._all.append(started)
        return started

    async def until_served(self) -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            while await status(self.http) != 200:
                assert all(process.returncode is None for process in self._all), self.said()
                await asyncio.sleep(0.1)

    async def __aenter__(self) -> "Programs":
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._all:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


async def test_both_programs_find_each_other_and_leave_when_asked(
    gateway: SmallGateway, tmp_path: Path
) -> None:
    async with Programs([gateway.port], tmp_path) as programs:
        check_bootstrap(programs.environment, programs.files, tmp_path)
        running = [await programs.start(PLANE), await programs.start(ENVOY)]
        await programs.until_served()
        for process in reversed(running):
            process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            statuses = [await process.wait() for process in running]
        assert statuses == [0, 0], programs.said()
        assert await status(programs.http) == 0


async def test_a_control_plane_that_is_killed_under_load_costs_no_request(
    gateway: SmallGateway, tmp_path: Path
) -> None:
    joining = SmallGateway("b")
    (joining.port,) = free_ports(1)
    async with Programs([gateway.port, joining.port], tmp_path) as programs:
        plane = await programs.start(PLANE)
        await programs.start(ENVOY)
        await programs.until_served()
        root = f"http://{LOOPBACK}:{programs.http}"
        async with httpx.AsyncClient(base_url=root, timeout=PATIENCE_S) as http, Load(http) as load:
            assert await load.more() == {"a"}
            plane.kill()
            assert await plane.wait() == -signal.SIGKILL
            assert await load.more(40) == {"a"}
            await programs.start(PLANE)
            await joining.start()
            await load.until({"a", "b"})
    await joining.kill()


def check_bootstrap(environment: dict[str, str], files: MemberFiles, folder: Path) -> None:
    """Envoy accepts what `bootstrap` prints, which names the key and does not hold it."""
    printed = subprocess.run(
        [sys.executable, "-m", ENVOY, "bootstrap"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
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
