"""The quota process: builds the objects, serves until it is asked to stop, then drains."""

from baton.runtime.calls import grpc_polling  # isort: skip # noqa: F401

import asyncio
import os

import grpc

from baton.keys.declared import DeclaredKeys
from baton.keys.homes import FileHome, RegistryHome, SecretHome
from baton.keys.secrets import ApiServer
from baton.runtime import environment, logs
from baton.runtime.admin import start_admin
from baton.runtime.cutoff import Cutoff
from baton.runtime.grpc_server import start_server
from baton.runtime.http_server import LoopServer
from baton.runtime.listening_socket import listening_socket
from baton.runtime.process import Process, run
from baton.runtime.redis_connections import connect, password_in
from baton.system.clock import SystemClock
from baton.wire.v1 import quota_pb2_grpc
from services.quota import instruments
from services.quota.admin.api import AdminApi
from services.quota.archive import Archiver
from services.quota.bootstrap_key import BootstrapKey
from services.quota.file_keys import Source, read_in_thread
from services.quota.ledger import LeaseTerms, Ledger, store_time_ms
from services.quota.prices import Prices
from services.quota.recent_settles import RecentSettles
from services.quota.registry import Registry
from services.quota.restore import ArchivedBudgets
from services.quota.revocations import Revocations
from services.quota.servicer import QuotaServicer
from services.quota.settings import PREFIX, Settings
from services.quota.store import RedisStore
from services.quota.tenant_meter import TenantMeter
from services.quota.upkeep import every, keep_files_loaded, keep_reaping
from services.quota.worker_archive import WorkerArchive

LOOK_AT_ALL_S = 600.0
_MAX_ADMIN_CONNECTIONS = 64
_ADMIN_DRAIN_S = 2
_log = logs.get("quota")


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`. Redis may be away at the start, the price list must be there.

    Raises PriceError.
    """
    prices = Prices(settings.prices_file)
    store = _store(settings)
    registry = _registry(store, settings)
    archiver, workers = _archiver(store, settings), _worker_archive(settings)
    ledger = Ledger(
        store,
        registry,
        LeaseTerms(settings.lease_s, settings.settled_kept_s),
        on_settled=archiver.wake if archiver else lambda tenant: None,
        meter=TenantMeter(settings.metered_tenants),
        prices=prices,
        on_workers=workers.note if workers else lambda workers: None,
    )

    settles = RecentSettles(ledger, store, process.clock.now)
    leaving = Cutoff()

    servicer = QuotaServicer(ledger, settles, leaving)

    def register(server: grpc.aio.Server) -> None:
        quota_pb2_grpc.add_QuotaServicer_to_server(servicer, server)

    api = _admin_api(store, registry, settings)
    # Before anything runs: a port that is taken is said in one line.
    bound = listening_socket(settings.api_listen) if api else None
    server = await start_server(settings.listen, register)
    admin_port = start_admin(settings.admin_listen, process.unready_reason)
    _log.info("serving", port=server.port, admin_port=admin_port)
    drained = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            keep_files_loaded(registry, prices, settings.registry_interval_s, process.stopping)
        )
        tasks.create_task(
            keep_reaping(ledger, settings.reap_interval_s, LOOK_AT_ALL_S, process.stopping)
        )
        tasks.create_task(every(settings.registry_interval_s, settles.follow, process.stopping))
        if api and bound:
            tasks.create_task(_admin_server(api).run_until(process.stopping, bound))
        if archiver:
            tasks.create_task(archiver.run(drained))
        if workers:
            tasks.create_task(workers.run(drained))
        await process.stopping.wait()
        leaving.now()
        # Calls that end now settle their requests; the archiver writes those records afterwards.
        await server.stop(settings.drain_s)
        drained.set()
    await store.close()


def _store(settings: Settings) -> RedisStore:
    client = connect(
        settings.redis_url,
        settings.redis_timeout_s,
        settings.redis_connections,
        password_in(settings.redis_password_file, settings.redis_username),
        password_in(settings.redis_sentinel_password_file),
    )
    return RedisStore(client)


def _registry(store: RedisStore, settings: Settings) -> Registry:
    sources: list[Source] = []
    if settings.bootstrap_key_file and settings.secret_file:
        sources.append((settings.bootstrap_key_file, BootstrapKey(settings.secret_file).read))
    if settings.registry_file:
        sources.append((settings.registry_file, read_in_thread))
    if settings.declared_file:
        sources.append((settings.declared_file, DeclaredKeys(store.execute).read))
    budgets = None
    if settings.usage_dir:
        budgets = ArchivedBudgets(
            store, settings.usage_dir, settings.num_archives, clock_ms=store_time_ms
        )
    return Registry(
        store,
        sources,
        fresh_for_s=settings.fresh_for_s,
        budgets=budgets,
        revocations=Revocations(store, settings.usage_dir),
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


def _worker_archive(settings: Settings) -> WorkerArchive | None:
    if settings.usage_dir is None:
        return None
    return WorkerArchive(settings.usage_dir, SystemClock().unix)


def _admin_api(store: RedisStore, registry: Registry, settings: Settings) -> AdminApi | None:
    if not settings.api_listen:
        return None
    assert settings.registry_file
    assert settings.api_token_file
    assert settings.secret_file
    home: RegistryHome = FileHome(settings.registry_file)
    if settings.registry_secret:
        home = SecretHome(ApiServer.of_pod(), settings.registry_secret)
    return AdminApi(home, registry, store, settings.api_token_file, settings.secret_file)


def _admin_server(api: AdminApi) -> LoopServer:
    return LoopServer(
        api.app(),
        limit_concurrency=_MAX_ADMIN_CONNECTIONS,
        timeout_graceful_shutdown=_ADMIN_DRAIN_S,
    )


async def main(process: Process) -> None:
    await serve(process, environment.load(Settings, PREFIX))


if __name__ == "__main__":
    run("quota", main, instruments.KNOWN_SERIES)
