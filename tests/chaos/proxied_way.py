"""A second way into a running stack, through a FaultProxy in front of each worker.

A router of its own that knows the workers by the proxies' addresses, and a gateway that asks it:
what the gateway sends to decode workers, and these to prefill workers, can then be delayed, cut and
corrupted while the stack's own gateway goes on undisturbed.
"""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import URLError

from baton.localstack.ports import LOOPBACK, free_ports
from baton.system.parent_death import die_with_parent
from baton.testing.fault_proxy import FaultProxy, OneUpstream
from tests.e2e.conftest import ROOT, Stack, read_metric, wait_until

READY_TIMEOUT_S = 240
# The one behind the base URL of a stack; the others are there for rolling restarts.
FIRST_GATEWAY = "gateway-1"


@dataclass(frozen=True)
class ProxiedWay:
    """`proxies` by the worker's name."""

    base_url: str
    metrics_url: str
    proxies: dict[str, FaultProxy]

    def metric(self, name: str) -> float:
        """Of its gateway, over all labels."""
        return read_metric(self.metrics_url, name)


def environment_of(pid: int) -> dict[str, str]:
    """The settings with which a process was started."""
    rows = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (row.decode().split("=", 1) for row in rows if b"=" in row)
    return dict(pairs)


@contextmanager
def proxied_way(stack: Stack, folder: Path) -> Iterator[ProxiedWay]:
    """Ready when entered. `folder` takes its logs and its outbox."""
    pids = stack.pids()
    with ExitStack() as undo:
        proxies = {}
        for name in stack.workers():
            host, _, port = environment_of(pids[name])["BATON_WORKER_LISTEN"].rpartition(":")
            proxies[name] = undo.enter_context(FaultProxy(OneUpstream(host, int(port))))
        ports = free_ports(4)
        listen = [f"{LOOPBACK}:{port}" for port in ports]
        router = environment_of(pids["router-1"]) | {
            "BATON_ROUTER_LISTEN": listen[0],
            "BATON_ROUTER_ADMIN_LISTEN": listen[1],
            "BATON_ROUTER_ROUTER_ID": "proxied",
            "BATON_ROUTER_WORKERS": ",".join(proxy.address for proxy in proxies.values()),
        }
        gateway = environment_of(pids[FIRST_GATEWAY]) | {
            "BATON_GATEWAY_LISTEN": listen[2],
            "BATON_GATEWAY_ADMIN_LISTEN": listen[3],
            "BATON_GATEWAY_GATEWAY_ID": "proxied",
            "BATON_GATEWAY_ROUTER": listen[0],
            "BATON_GATEWAY_OUTBOX_DIR": str(folder / "outbox"),
        }
        undo.enter_context(_process("services.router", router, folder / "router.log"))
        undo.enter_context(_process("services.gateway", gateway, folder / "gateway.log"))
        wait_until(partial(is_ready, f"http://{listen[2]}/readyz"), READY_TIMEOUT_S)
        yield ProxiedWay(f"http://{listen[2]}/v1", f"http://{listen[3]}/metrics", proxies)


@contextmanager
def _process(module: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            preexec_fn=partial(die_with_parent, signal.SIGKILL),
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, TimeoutError, ConnectionError):
        return False
