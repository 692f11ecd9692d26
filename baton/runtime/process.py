"""The root of every service process: event loop, logs, telemetry, signals, exit codes.

SIGTERM or SIGINT sets `Process.stopping`; the service drains and its main returns. A second
signal ends the process at once. This is the only place that catches every exception.

The garbage collector never looks at what was imported: a full collection of that takes 25 to 40 ms,
in which all requests of the process stand still.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import uvloop

from baton.runtime import instruments, logs, peer_tls, telemetry
from baton.runtime.environment import SettingsError
from baton.runtime.otlp.channel import is_exported
from baton.system.clock import Clock, SystemClock
from baton.system.exit_status import STATUS_MISCONFIGURED

_log = logs.get("process")


class Misconfigured(Exception):
    """This process can never serve with its settings; the message is one line for people."""


class Process:
    """The process of a service, for its main: name, clock, and the event that asks it to drain."""

    def __init__(self, service: str, clock: Clock, stopping: asyncio.Event) -> None:
        self.service = service
        self.clock = clock
        self.stopping = stopping

    def unready_reason(self) -> str:
        """The reason for which nothing new is taken, for /readyz; empty when there is none."""
        return "draining" if self.stopping.is_set() else ""


def run(
    service: str,
    main: Callable[[Process], Awaitable[None]],
    known_series: instruments.Series | None = None,
) -> NoReturn:
    """Run `main` until it returns, then exit. The counters of `known_series` begin at 0.

    Exit status: 0 after a clean drain, 1 when main raised, 2 when it raised Misconfigured or a
    SettingsError (the last line on stderr is its message), 130 after a second signal.
    """
    logs.setup(service, os.environ.get("BATON_LOG_LEVEL", "INFO"))
    instruments.begin_known(known_series or {})
    _begin_telemetry(service)
    try:
        peer_tls.of_process()
        gc.freeze()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_supervised(service, main))
    except (Misconfigured, SettingsError) as error:
        telemetry.shutdown()
        print(error, file=sys.stderr)
        raise SystemExit(STATUS_MISCONFIGURED) from None
    except SystemExit:
        raise
    except BaseException as error:
        _log.exception("service_failed", error=str(error)[:200])
        telemetry.shutdown()
        raise SystemExit(1) from None
    telemetry.shutdown()
    raise SystemExit(0)


def _begin_telemetry(service: str) -> None:
    """Begin the exports that OpenTelemetry's variables ask for; they end with the process."""
    try:
        telemetry.setup(service)
        if is_exported("metrics"):
            # Only here: they are large, and few ask for them.
            from baton.runtime.otlp.metric_export import MetricExport

            telemetry.on_shutdown(MetricExport(service).shutdown)
        if is_exported("logs"):
            from baton.runtime.otlp.log_export import LogExport

            telemetry.on_shutdown(LogExport(service).shutdown)
    except (ValueError, SettingsError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(STATUS_MISCONFIGURED) from None


async def _supervised(service: str, main: Callable[[Process], Awaitable[None]]) -> None:
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await main(Process(service, SystemClock(), stopping))
