"""The router process: build the objects, serve until asked to stop."""

import asyncio
from random import Random

import grpc

from baton.runtime import admin, environment, logs
from baton.runtime.grpc_channel import open_channel
from baton.runtime.grpc_server import start_server
from baton.runtime.process import Process, run
from baton.runtime.shared_stream import ClientFrameStream
from baton.wire.v1 import router_pb2_grpc, worker_pb2_grpc
from services.router.router_core import RouterCore
from services.router.servicer import RouterServicer
from services.router.settings import ENVIRONMENT_PREFIX, Settings
from services.router.watcher import ReportStream, Watcher

_log = logs.get("router")


class Dialer:
    """Opens report streams; one channel per worker for the life of the process."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def dial(self, endpoint: str) -> ReportStream:
        """A new Watch stream to the worker at `endpoint`; connects in the background."""
        if endpoint not in self._channels:
            self._channels[endpoint] = open_channel(endpoint, link=True)
        call = worker_pb2_grpc.WorkerReportsStub(self._channels[endpoint]).Watch()
        return ClientFrameStream(call)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`, then refuse what waits and end."""
    random = Random()
    core = RouterCore(settings, process.clock, random)
    dialer = Dialer()
    servicer = RouterServicer(core)
    server = await start_server(
        settings.listen,
        lambda target: router_pb2_grpc.add_RouterServicer_to_server(servicer, target),
        link=True,
    )
    admin_port = admin.start_admin(settings.admin_listen, process.unready_reason)
    _log.info("serving", port=server.port, admin_port=admin_port, num_workers=len(settings.workers))
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(Watcher(core, dialer.dial, random).run(settings.workers))
        await process.stopping.wait()
        core.close()
        await server.stop(settings.stop_grace_s)
        watch.cancel()
    await dialer.close()
    _log.info("stopped")


def main() -> None:
    settings = environment.load(Settings, ENVIRONMENT_PREFIX)

    async def served(process: Process) -> None:
        await serve(process, settings)

    run("router", served)


if __name__ == "__main__":
    main()
