"""Several gateway processes for one address: start, watch, restart, and drain together (decision
0066).

The sockets are bound here and inherited. So all processes accept from one queue, and none of its
connections is lost with a process; its own streams are, as those of any gateway that dies. Each
process is a gateway of its own, with its own id, outbox, limits and admin port on loopback: the
admin socket is left to the process, so that nobody waits on that of one that has ended.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from baton.runtime import logs
from baton.runtime.admin import start_admin
from baton.runtime.listening_socket import INHERITED, listening_socket
from baton.runtime.process import Misconfigured, Process
from baton.system.clock import Clock
from baton.system.exit_status import STATUS_MISCONFIGURED
from baton.system.parent_death import die_with_parent
from services.gateway.http.shared_listener import ConnectionCounts, ProcessPlace
from services.gateway.processes.pages import ProcessPages
from services.gateway.server import SEND_BUFFER_BYTES
from services.gateway.settings import PREFIX, GatewaySettings
from services.gateway.tenants.outbox_files import folder_of, take_over

# A process that ends within this time is started again later each time.
_STEADY_S = 5.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.25, 5.0
# What a process may take for its end beyond its drain.
_LAST_S = 10.0
# A process whose event loop stands still is ended: so many looks in a row.
LOOK_S = 10.0
_MAX_SILENT = 3

_log = logs.get("processes")


class _CannotServe(Exception):
    """A process has found that it can never serve; its last line has told why."""


@dataclass(slots=True)
class _Member:
    """One of the processes, under its number, in whatever life."""

    number: int
    # Its admin port in this life.
    port: int = 0
    process: asyncio.subprocess.Process | None = None
    # Looks in a row without an answer; none before the first answer of a life.
    num_silent: int | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def is_stuck(self, *, is_alive: bool) -> bool:
        """Take in a look; True when its event loop has stood still for too long."""
        if is_alive:
            self.num_silent = 0
        elif self.num_silent is not None:
            self.num_silent += 1
        return self.num_silent == _MAX_SILENT


def place_of(arguments: Sequence[str], settings: GatewaySettings) -> ProcessPlace | None:
    """The place that the parent process has given to this one, which it says in the arguments; None
    for a process without such a parent. Raises Misconfigured."""
    if not arguments:
        return None
    try:
        number, file = map(int, arguments)
    except ValueError:
        raise Misconfigured(f"takes no arguments: its settings are {PREFIX}*") from None
    return ProcessPlace(number - 1, ConnectionCounts(file, settings.processes))


async def serve_all(process: Process, settings: GatewaySettings) -> None:
    """Run `settings.processes` gateways until `process.stopping`, then let all of them drain.
    Raises Misconfigured; exits as they do when they can never serve."""
    take_over(settings.outbox_dir, settings.processes)
    bound = listening_socket(settings.listen, send_buffer_bytes=SEND_BUFFER_BYTES)
    members = Members(settings, bound, process.clock)
    pages = ProcessPages(settings.processes, members.ports)
    admin_port = start_admin(settings.admin_listen, process.unready_reason, relay=pages.answer)
    port = bound.getsockname()[1]
    _log.info("serving", port=port, admin_port=admin_port, num_processes=settings.processes)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(members.run())
            watching = tasks.create_task(members.watch(pages))
            await process.stopping.wait()
            watching.cancel()
            await members.stop(running)
    except* _CannotServe:
        raise SystemExit(STATUS_MISCONFIGURED) from None
    _log.info("stopped")


class Members:
    """The processes that share the socket `bound`. `run` them once."""

    def __init__(self, settings: GatewaySettings, bound: socket.socket, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._bound = bound
        self._counts = ConnectionCounts.create(settings.processes)
        self._stopping = asyncio.Event()
        # One of them has answered: the settings are good.
        self._has_served = False
        numbers = range(1, settings.processes + 1)
        self._members = [_Member(number) for number in numbers]

    def ports(self) -> Mapping[int, int]:
        """The admin ports of the processes that run, by number."""
        return {each.number: each.port for each in self._members if each.is_running}

    async def run(self) -> None:
        """Keep all processes running until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(self._keep_running(member))

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Let all processes drain, and end those that take too long."""
        self._stopping.set()
        # Once all of them have left it, too, a new connection is refused and does not wait.
        self._bound.close()
        for member in self._members:
            member.signal(signal.SIGTERM)
        settings = self._settings
        await asyncio.wait([running], timeout=settings.unready_s + settings.drain_s + _LAST_S)
        for member in self._members:
            member.signal(signal.SIGKILL)

    async def watch(self, pages: ProcessPages) -> None:
        """End each process whose event loop stands still, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            alive = await asyncio.to_thread(pages.bodies, "/livez")
            self._has_served |= bool(alive)
            for member in self._members:
                if member.is_running and member.is_stuck(is_alive=member.number in alive):
                    _log.warning("process_stuck", process=member.number)
                    member.signal(signal.SIGKILL)

    async def _keep_running(self, member: _Member) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            began_s = self._clock.now()
            status = await self._run_once(member)
            if self._stopping.is_set():
                return
            if status == STATUS_MISCONFIGURED and not self._has_served:
                raise _CannotServe
            if self._clock.now() - began_s > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            _log.warning("process_ended", process=member.number, status=status)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _run_once(self, member: _Member) -> int:
        """Run a process for one life; returns its exit status."""
        member.num_silent = None
        with listening_socket("127.0.0.1:0") as admin:
            member.port = admin.getsockname()[1]
            member.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.gateway"),
                *(str(member.number), str(self._counts.file)),
                env={**os.environ, **self._variables(member, admin)},
                pass_fds=(self._bound.fileno(), admin.fileno(), self._counts.file),
                # A terminal's Ctrl-C would be a second signal, which ends them at once.
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        _log.info("process_started", process=member.number, pid=member.process.pid)
        if self._stopping.is_set():
            member.signal(signal.SIGKILL)
        status = await member.process.wait()
        self._counts.left(member.number - 1)
        return status

    def _variables(self, member: _Member, admin: socket.socket) -> dict[str, str]:
        settings = self._settings
        name = settings.gateway_id or f"{socket.gethostname()}-{os.getpid()}"
        outbox = folder_of(settings.outbox_dir, member.number, settings.processes)
        own = {
            "LISTEN": f"{INHERITED}{self._bound.fileno()}",
            "ADMIN_LISTEN": f"{INHERITED}{admin.fileno()}",
            "GATEWAY_ID": f"{name}-{member.number}",
            "OUTBOX_DIR": str(outbox),
        }
        return {f"{PREFIX}{key}": value for key, value in own.items()}
