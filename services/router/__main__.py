"""The router process: builds the objects and serves until it is asked to stop."""

from baton.runtime.calls import grpc_polling  # isort: skip # noqa: F401

import asyncio
import gc
from functools import partial
from random import Random

import grpc

from baton.runtime import admin, environment, logs
from baton.runtime.cutoff import Cutoff
from baton.runtime.discovery.discover import discover
from baton.runtime.grpc_channel import open_channel
from baton.runtime.grpc_server import start_server
from baton.runtime.process import Process, run
from baton.runtime.shared_stream import ClientFrameStream
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import (
    peers_pb2,
    peers_pb2_grpc,
    router_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from services.router import instruments
from services.router.router_core import RouterCore
from services.router.servicer import RouterPeersServicer, RouterServicer
from services.router.settings import ENVIRONMENT_PREFIX, Settings
from services.router.watcher import PeerWatcher, Watcher

# New objects that are still there, after which garbage is looked for: some thousand picks leave
# so many.
_NUM_YOUNG = 20_000
_log = logs.get("router")


class ReportCall(ClientFrameStream[worker_pb2.ReportAck]):
    """A stream of reports over a channel of its own, which is closed with it."""

    def __init__(self, endpoint: str) -> None:
        self._channel = open_channel(endpoint, "worker", link=True)
        super().__init__(worker_pb2_grpc.WorkerReportsStub(self._channel).Watch())

    async def close(self) -> None:
        await self._channel.close()


class NewsCall(ClientFrameStream[None]):
    """A stream of a peer's news over a channel of its own, which is closed with it."""

    def __init__(self, router_id: str, address: str) -> None:
        self._channel = open_channel(address, "router", link=True)
        request = peers_pb2.FollowRequest(protocol=PROTOCOL_VERSION, router_id=router_id)
        super().__init__(peers_pb2_grpc.RouterPeersStub(self._channel).Follow(request))

    async def close(self) -> None:
        await self._channel.close()


def collect_rarely() -> None:
    """Look for cyclic garbage rarely: a router makes almost none, and what a pick leaves behind,
    here and at each peer, lives for about two seconds."""
    gc.set_threshold(_NUM_YOUNG)


def add_services(core: RouterCore, leaving: Cutoff, server: grpc.aio.Server) -> None:
    """Let a server serve gateways and other routers."""
    router_pb2_grpc.add_RouterServicer_to_server(RouterServicer(core, leaving), server)
    peers_pb2_grpc.add_RouterPeersServicer_to_server(RouterPeersServicer(core), server)


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`, then refuse the requests that wait and end."""
    random, leaving = Random(), Cutoff()
    core = RouterCore(settings, process.clock, random)
    discovery = await discover(settings.workers, random)
    peers = await discover(settings.peers, random)
    register = partial(add_services, core, leaving)
    server = await start_server(settings.listen, register, link=True)
    admin_port = admin.start_admin(settings.admin_listen, process.unready_reason)
    _log.info("serving", port=server.port, admin_port=admin_port, workers=settings.workers)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(Watcher(core, ReportCall, process.clock, random).run(discovery))
        dial = partial(NewsCall, settings.router_id)
        follow = PeerWatcher(core, settings.router_id, dial, random).run(peers)
        watch_peers = tasks.create_task(follow)
        await process.stopping.wait()
        core.close()
        leaving.now()
        await server.stop(settings.stop_grace_s)
        watch.cancel()
        watch_peers.cancel()
    _log.info("stopped")


def main() -> None:
    collect_rarely()
    settings = environment.load(Settings, ENVIRONMENT_PREFIX)

    async def served(process: Process) -> None:
        await serve(process, settings)

    run("router", served, instruments.KNOWN_SERIES)


if __name__ == "__main__":
    main()
