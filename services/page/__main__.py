"""The process of the page: the pods of its release, their spans, its visitors."""

import asyncio
import secrets
from functools import partial
from pathlib import Path
from random import Random

from baton.page import span_receiver
from baton.page.fleet_watch import FleetWatch, Pace
from baton.page.quota_client import QuotaClient
from baton.page.reads import Mode, Reads, Sources
from baton.page.server import PageServer, Tls
from baton.runtime import environment, logs
from baton.runtime.admin import start_admin
from baton.runtime.discovery.kubernetes import SliceWatch, connect
from baton.runtime.listening_socket import listening_socket
from baton.runtime.process import Misconfigured, Process, run
from services.page.app import application
from services.page.cluster_fleet import RELEASE_LABEL, ClusterFleet
from services.page.sessions import Sessions
from services.page.settings import PREFIX, Settings

# Each pod is asked so often, however many browsers look.
_PACE = Pace(watched_s=2.0, unwatched_s=15.0)
_MAX_CONNECTIONS = 128
_SESSION_BYTES = 32
_log = logs.get("page")


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`. Raises what keeps it from serving."""
    connection = await connect()
    fleet = ClusterFleet(f"{settings.release} in {connection.namespace}", settings.services_port)
    pods = SliceWatch(connection, f"{RELEASE_LABEL}={settings.release}", Random())
    watch = FleetWatch(fleet, settings.spans_file, _PACE)
    quota = QuotaClient(settings.quota_api, settings.quota_token_file)
    bound = listening_socket(settings.listen)
    receiving = await span_receiver.begin(_spans(settings))
    views = ("fleet", "requests", *(["tenants"] if settings.quota_api else []))
    sources = Sources(fleet, settings.spans_file)
    reads = Reads(sources, watch, quota, Mode(is_local=False, views=views))
    app = application(reads, _sessions(process, settings), f"baton-page-{settings.release}")
    server = PageServer(app, _MAX_CONNECTIONS, _tls(settings))

    def unready_reason() -> str:
        return process.unready_reason() or ("" if fleet.fleet() else "no pod is known")

    admin_port = start_admin(settings.admin_listen, unready_reason)
    _log.info("serving", listen=settings.listen, admin_port=admin_port)
    async with asyncio.TaskGroup() as tasks:
        endless = [tasks.create_task(pods.follow(fleet.found)), tasks.create_task(watch.run())]
        tasks.create_task(receiving.run(process.stopping))
        await server.run_until(process.stopping, bound)
        for task in endless:
            task.cancel()
    watch.close()
    await quota.close()


def _sessions(process: Process, settings: Settings) -> Sessions:
    return Sessions(
        partial(_token_in, settings.token_file),
        settings.session_s,
        process.clock.now,
        partial(secrets.token_urlsafe, _SESSION_BYTES),
    )


def _spans(settings: Settings) -> span_receiver.Settings:
    return span_receiver.Settings(
        listen=settings.spans_listen,
        store=settings.spans_file,
        forward_to=settings.forward_to,
        max_bytes=settings.spans_bytes,
    )


def _tls(settings: Settings) -> Tls | None:
    """Raises Misconfigured."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    for file in (settings.tls_cert_file, settings.tls_key_file):
        if not file.is_file():
            raise Misconfigured(f"{PREFIX}TLS_*_FILE: there is no file {file}")
    return Tls(settings.tls_cert_file, settings.tls_key_file)


def _token_in(file: Path) -> str:
    """Empty when it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        _log.error("token_unreadable", reason=str(error))
        return ""


async def _page(process: Process) -> None:
    await serve(process, environment.load(Settings, PREFIX))


def main() -> None:
    run("page", _page)


if __name__ == "__main__":
    main()
