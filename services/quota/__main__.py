"""The quota process: builds the objects, serves until told to stop, then drains."""

import asyncio
import os

import grpc

from baton.runtime import environment, logs
from baton.runtime.admin import start_admin
from baton.runtime.grpc_server import GrpcServer, start_server
from baton.runtime.process import Process, run
from baton.system.clock import Clock
from baton.wire.key_registry import Command, KeyRecord
from baton.wire.v1 import quota_pb2_grpc
from services.quota.archive import Archiver
from services.quota.ledger import LeaseTerms, Ledger
from services.quota.registry import Registry
from services.quota.restore import spent_commands
from services.quota.servicer import QuotaServicer
from services.quota.settings import PREFIX, Settings
from services.quota.store import RedisStore, connect
from services.quota.upkeep import keep_reaping, keep_registry_loaded

_log = logs.get("quota")


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`; a Redis that is away at start is waited for."""
    client = connect(settings.redis_url, settings.redis_timeout_s, settings.redis_connections)
    store = RedisStore(client)
    registry = _registry(store, settings, process.clock)
    archiver = _archiver(store, settings)
    ledger = Ledger(
        store,
        registry,
        LeaseTerms(settings.lease_s, settings.settled_kept_s),
        on_settled=archiver.wake if archiver else lambda tenant: None,
    )

    def register(server: grpc.aio.Server) -> None:
        quota_pb2_grpc.add_QuotaServicer_to_server(QuotaServicer(ledger), server)

    server = await start_server(settings.listen, register)
    admin_port = start_admin(settings.admin_listen)
    _log.info("serving", port=server.port, admin_port=admin_port)
    archive_stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        upkeep = [
            tasks.create_task(keep_registry_loaded(registry, settings.registry_interval_s)),
            tasks.create_task(keep_reaping(ledger, settings.reap_interval_s)),
        ]
        if archiver:
            tasks.create_task(archiver.run(archive_stopping))
        await process.stopping.wait()
        await _drain(server, settings.drain_s, upkeep)
        archive_stopping.set()
    await store.close()


def _registry(store: RedisStore, settings: Settings, clock: Clock) -> Registry:
    folder = settings.usage_dir

    async def restore(records: list[KeyRecord]) -> list[Command]:
        if folder is None:
            return []
        return await asyncio.to_thread(spent_commands, records, folder, int(clock.unix() * 1000))

    return Registry(
        store, settings.registry_file, fresh_for_s=settings.fresh_for_s, restore=restore
    )


def _archiver(store: RedisStore, settings: Settings) -> Archiver | None:
    if settings.usage_dir is None:
        return None
    return Archiver(
        store,
        settings.usage_dir,
        token=os.urandom(16).hex(),
        interval_s=settings.archive_interval_s,
    )


async def _drain(server: GrpcServer, grace_s: float, upkeep: list[asyncio.Task[None]]) -> None:
    """Last settles come in while calls end; the archiver writes them after this."""
    await server.stop(grace_s)
    for task in upkeep:
        task.cancel()


async def main(process: Process) -> None:
    await serve(process, environment.load(Settings, PREFIX))


if __name__ == "__main__":
    run("quota", main)
