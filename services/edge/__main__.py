"""The control plane of the Envoys. services/envoy runs one Envoy."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from random import Random

from baton.runtime import environment, logs, peer_tls
from baton.runtime.admin import start_admin
from baton.runtime.discovery.discover import discover
from baton.runtime.discovery.members import KUBERNETES
from baton.runtime.grpc_server import start_server
from baton.runtime.http_call import TlsServer
from baton.runtime.process import Misconfigured, Process, run
from services.edge import instruments
from services.edge.ads import AdsServicer
from services.edge.configuration import Configuration
from services.edge.discovery import Discovery
from services.edge.gateway_tls import GatewayTls
from services.edge.http_manager import Tracing
from services.edge.listener import ClientSide
from services.edge.polled_gateways import ListedGateways, NamedGateway, PolledGateways, ask
from services.edge.settings import PREFIX, Settings
from services.edge.tracing import tracing_of

_log = logs.get("edge")


async def serve(
    process: Process,
    settings: Settings,
    discovery: Discovery,
    tracing: Tracing | None = None,
    on_bound: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until `process.stopping`. `on_bound` learns the port."""
    configuration = Configuration(ClientSide(settings, tracing), _gateway_tls(settings))

    def unready_reason() -> str:
        return process.unready_reason() or ("" if configuration.is_known else "no gateway known")

    server = await start_server(settings.listen, AdsServicer(configuration).register)
    admin_port = start_admin(settings.admin_listen, unready_reason)
    _log.info("serving", port=server.port, admin_port=admin_port)
    on_bound(server.port)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(discovery.follow(configuration.found))
        await process.stopping.wait()
        following.cancel()
        # Streams of Envoys never end by themselves; an Envoy opens its stream again elsewhere.
        await server.stop(grace_s=0)


def _gateway_tls(settings: Settings) -> GatewayTls | None:
    files = environment.load(peer_tls.Settings, peer_tls.PREFIX)
    try:
        return GatewayTls.of(files, settings.gateway_name)
    except ValueError as error:
        raise Misconfigured(f"{PREFIX}{error}") from error


async def discovery_of(settings: Settings) -> Discovery:
    """Make the source of the gateways in the settings. Raises Misconfigured, SettingsError."""
    named: list[NamedGateway] = []
    listed: list[ListedGateways] = []
    try:
        for text in settings.gateways:
            if text.startswith(KUBERNETES):
                target, _, region = text.partition("@")
                listed.append(ListedGateways(await discover([target], Random()), region))
            else:
                named.append(NamedGateway.parse(text))
    except ValueError as error:
        raise Misconfigured(f"{PREFIX}GATEWAYS: {error}") from error
    identity = peer_tls.of_process()
    name = settings.gateway_name
    tls = TlsServer(identity, name) if identity and name else None
    return PolledGateways(named, settings.poll_s, ask=partial(ask, tls=tls), listed=listed)


async def _control_plane(process: Process) -> None:
    settings = environment.load(Settings, PREFIX)
    await serve(process, settings, await discovery_of(settings), tracing_of(os.environ))


def main() -> None:
    run("edge", _control_plane, instruments.KNOWN_SERIES)


if __name__ == "__main__":
    main()
