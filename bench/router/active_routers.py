"""The picks of two active routers beside those of one, by the CPU time of their processes.

Each router is a process of its own with the product's gRPC services and its stream to the other
one. Two routers that know nothing of each other show what it costs a process on this machine that
another one works beside it. The workers are on paper (`picks.py`), the same for all, and report in
the same process. CPU time is measured, not time on the clock: the machine may have fewer cores than
the routers. What a router does by the clock, telling news and ending leases, is stretched by as
much as the machine is too slow.
"""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.runtime.cutoff import Cutoff
from baton.runtime.discovery.discover import FixedMembers
from baton.runtime.grpc_channel import open_channel
from baton.runtime.grpc_server import start_server
from baton.system.clock import SystemClock
from baton.wire.call_methods import PICK
from baton.wire.v1 import router_pb2_grpc
from bench.router.picks import PaperFleet
from services.router.__main__ import NewsCall, add_services, collect_rarely
from services.router.peers import news
from services.router.settings import Settings
from services.router.watcher import PeerWatcher

NUM_WORKERS = 100
PROMPT_TOKENS = 16_000
_NUM_OWN = 2_000
# Callers of each router: its calls share frames as much whether there are others or not.
_NUM_AT_ONCE = 8
# So fast that no request waits in line at any number of picks.
_PREFILL_TOKENS_PER_S = 1e6
# Rare: every router takes all reports, however many routers there are (`picks.py` measures them).
_REPORT_S = 1.0
# Leases end by time alone, about when reports would end them: workers on paper name no requests.
_LEASE_S = 0.2
# The routers' processes may still be starting.
_TERMS = CallTerms(60.0, patience_s=60.0)


async def routers_record(
    num_routers: int, num_picks: int, seed: int, stretch: float = 1.0, *, are_peers: bool = True
) -> dict[str, Any]:
    """Measure so many routers; `picks_per_s` fill a core of each.

    `stretch` is the time on the clock in which a router had a second of CPU time, as one router
    alone measured it. All measurements of a process share one event loop: the last events of a
    call may come after it, and gRPC would hand them to a loop that is closed.
    """
    addresses = tuple(f"{LOOPBACK}:{port}" for port in free_ports(num_routers))
    with _running(addresses, seed, stretch, are_peers=are_peers) as pids:
        cpu_s, wall_s = await _measure(addresses, pids, num_picks, seed)
    return {
        "part": "routers",
        "num_routers": num_routers,
        "are_peers": num_routers > 1 and are_peers,
        "num_workers": NUM_WORKERS,
        "num_picks": num_picks,
        "prompt_tokens": PROMPT_TOKENS,
        "seed": seed,
        "cpu_s": [round(each, 2) for each in cpu_s],
        "picks_per_s": round(num_picks / max(cpu_s), 1),
        "stretch": round(wall_s / max(cpu_s), 2),
    }


@contextmanager
def _running(
    addresses: tuple[str, ...], seed: int, stretch: float, *, are_peers: bool
) -> Iterator[list[int]]:
    """Routers at these addresses while they are measured; yields the ids of their processes."""
    argv = [sys.executable, "-m", __name__, str(seed), str(stretch)]
    processes = [
        subprocess.Popen([*argv, address, *(addresses if are_peers else ())])
        for address in addresses
    ]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _fleet(seed: int, settings: Settings | None = None) -> PaperFleet:
    clock, rate = SystemClock(), _PREFILL_TOKENS_PER_S
    return PaperFleet(NUM_WORKERS, _NUM_OWN, Random(seed), settings, clock, rate)


def main() -> None:
    """Be one router as `baton/runtime/process.py` runs it: SEED STRETCH ADDRESS ALL_ADDRESSES..."""
    seed, stretch, address, *addresses = sys.argv[1:]
    news.PACE_S *= float(stretch)
    news.LINES_S *= float(stretch)
    settings = Settings(
        router_id=address,
        peers=tuple(addresses) if len(addresses) > 1 else (),
        slot_lease_s=_LEASE_S * float(stretch),
        stale_after_s=60,
    )
    collect_rarely()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, int(seed)))


async def _serve(settings: Settings, seed: int) -> None:
    """Serve as one router until killed."""
    address, peers = settings.router_id, settings.peers
    fleet = _fleet(seed, settings)
    server = await start_server(address, partial(add_services, fleet.core, Cutoff()), link=True)
    watcher = PeerWatcher(fleet.core, address, partial(NewsCall, address), Random(seed))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watcher.run(FixedMembers(peers)))
        tasks.create_task(_report(fleet))
    await server.stop(0)


async def _report(fleet: PaperFleet) -> None:
    while True:
        fleet.report_all()
        await asyncio.sleep(_REPORT_S)


async def _measure(
    addresses: tuple[str, ...], pids: list[int], num_picks: int, seed: int
) -> tuple[list[float], float]:
    """Pick `num_picks` times, at all routers alike.

    Returns the CPU time of each router, and the time on the clock.
    """
    fleet, numbers = _fleet(seed), count()
    channels = [open_channel(address) for address in addresses]
    stubs = [router_pb2_grpc.RouterStub(channel) for channel in channels]
    routers = [SharedCalls.over_grpc(stub, SystemClock(), is_balanced=False) for stub in stubs]

    async def pick(router: SharedCalls, num_times: int) -> None:
        for _ in range(num_times):
            request = fleet.request(f"request-{next(numbers)}", PROMPT_TOKENS)
            await router.call(PICK, request, _TERMS)

    async def pick_at_once(num_times: int) -> None:
        callers = [router for router in routers for _ in range(_NUM_AT_ONCE)]
        async with asyncio.TaskGroup() as tasks:
            for router in callers:
                tasks.create_task(pick(router, num_times // len(callers)))

    await pick_at_once(num_picks // 10)
    began_s, before = time.monotonic(), [_cpu_s(pid) for pid in pids]
    await pick_at_once(num_picks)
    ended_s, after = time.monotonic(), [_cpu_s(pid) for pid in pids]
    for router, channel in zip(routers, channels, strict=True):
        await router.close()
        await channel.close()
    return [b - a for a, b in zip(before, after, strict=True)], ended_s - began_s


def _cpu_s(pid: int) -> float:
    """The CPU time of a process, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
