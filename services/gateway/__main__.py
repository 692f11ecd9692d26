"""The gateway process: builds the objects, serves until a signal, then drains."""

from baton.runtime.calls import grpc_polling  # isort: skip # noqa: F401

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from random import SystemRandom

from baton.runtime import environment, logs, peer_tls
from baton.runtime.admin import Page, start_admin
from baton.runtime.listening_socket import listening_socket
from baton.runtime.process import Misconfigured, Process, run
from baton.runtime.redis_connections import connect, password_in
from baton.wire.key_registry import RegistryError, read_secrets
from services.gateway import instruments
from services.gateway.app import App
from services.gateway.clients.body_parser import ChildBodyParser
from services.gateway.clients.grpc import GrpcQuota, GrpcRouter, GrpcTokenizer, dial_worker
from services.gateway.clients.url import fetch
from services.gateway.gateway import Clients, Gateway, GatewayIdentity
from services.gateway.http.callers import HttpCallers
from services.gateway.http.cors import with_cors
from services.gateway.http.shared_listener import ProcessPlace
from services.gateway.http.trace_border import TraceBorder
from services.gateway.identity.certificates import Certificates
from services.gateway.open_requests import open_requests
from services.gateway.processes.supervisor import place_of, serve_all
from services.gateway.redis_commands import RedisCommands
from services.gateway.request.limits import Limits
from services.gateway.request.room import ByteLimits
from services.gateway.routing.alias_file import follow_aliases, read_aliases
from services.gateway.routing.models import AliasError
from services.gateway.safety.hook import SafetyHook
from services.gateway.server import SEND_BUFFER_BYTES, HttpServer
from services.gateway.settings import PREFIX, GatewaySettings
from services.gateway.stored.store import BatchLimits, Store, StoreLimits
from services.gateway.tenants.auth import TokenChecker
from services.gateway.tenants.outbox_files import DiskFiles, take_over

LAST_SETTLES_S = 2.0

_log = logs.get("gateway")


async def serve(
    process: Process,
    settings: GatewaySettings,
    on_bound: Callable[[int], None] = lambda port: None,
    place: ProcessPlace | None = None,
) -> None:
    """Serve until `process.stopping`, then let open requests end. `on_bound` is called with the
    port; `place`: of one of several processes. Raises Misconfigured.
    """
    quota = GrpcQuota(settings.quota, process.clock)
    tokenizer = GrpcTokenizer(settings.tokenizer, process.clock)
    routers = {endpoint: GrpcRouter(endpoint, process.clock) for endpoint in settings.router}
    body_parser = ChildBodyParser(process.clock, settings.max_body_bytes)
    clients = Clients(
        quota=quota,
        tokenizer=tokenizer,
        routers=routers,
        dial=dial_worker,
        outbox_files=DiskFiles(settings.outbox_dir),
        in_thread=asyncio.to_thread,
        body_parser=body_parser,
        store=_store(process, settings),
        tokens=_tokens(process, settings),
        safety=_safety(settings),
    )
    gateway = _gateway(process, settings, clients)
    app = _app(gateway, settings)
    take_over(settings.outbox_dir, num_processes=1)
    bound = listening_socket(settings.listen, send_buffer_bytes=SEND_BUFFER_BYTES)
    server = _server(app, settings, place)
    admin_port = start_admin(settings.admin_listen, process.unready_reason, _pages(gateway))
    port = bound.getsockname()[1]
    _log.info("serving", port=port, admin_port=admin_port)
    on_bound(port)
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(gateway.run())]
        if settings.discovery == "kubernetes":
            background += [tasks.create_task(client.follow()) for client in (quota, tokenizer)]
        if settings.aliases_file is not None:
            following = follow_aliases(gateway.directory, settings.aliases, settings.aliases_file)
            background.append(tasks.create_task(following))
        serving = tasks.create_task(server.serve([bound]))
        stopping = tasks.create_task(process.stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await _leave(gateway, app, server, settings)
        stopping.cancel()
        await serving
        # Requests that the drain cut off are settled, too.
        await app.idle(LAST_SETTLES_S)
        await gateway.outbox.flush(LAST_SETTLES_S)
        await gateway.close()
        for task in background:
            task.cancel()
    for client in (body_parser, clients.safety, *routers.values(), quota, tokenizer):
        if client is not None:
            await client.close()
    _log.info("stopped")


def _pages(gateway: Gateway) -> dict[str, Page]:
    return {
        "/requests": lambda rest: open_requests(gateway),
        "/explain": gateway.explanations.page,
    }


def _gateway(process: Process, settings: GatewaySettings, clients: Clients) -> Gateway:
    name = settings.gateway_id or f"{socket.gethostname()}-{os.getpid()}"
    # In a container the name is the same after a restart; for the workers that is another gateway.
    gateway_id = f"{name}-{os.urandom(4).hex()}"
    try:
        identity = GatewayIdentity(gateway_id, read_secrets(settings.secret_file), settings.zone)
        aliases = read_aliases(settings.aliases, settings.aliases_file)
    except (AliasError, RegistryError, OSError) as error:
        raise Misconfigured(str(error)) from error
    return Gateway(
        clients,
        identity,
        process.clock,
        SystemRandom(),
        aliases=aliases,
        limits=_limits(settings),
    )


def _store(process: Process, settings: GatewaySettings) -> Store | None:
    if not settings.store_url:
        return None
    client = connect(
        settings.store_url,
        settings.store_timeout_s,
        settings.store_connections,
        password_in(settings.store_password_file, settings.store_username),
        password_in(settings.store_sentinel_password_file),
    )
    limits = StoreLimits(
        settings.store_ttl_s,
        settings.store_bytes_of_tenant,
        settings.store_objects_of_tenant,
        settings.store_object_bytes,
        settings.store_excludes,
        BatchLimits(
            max_file_bytes=settings.batch_file_bytes,
            max_lines=settings.batch_lines,
            max_bytes_of_tenant=settings.batch_bytes_of_tenant,
            num_lines_at_once=settings.batch_concurrency,
        ),
    )
    return Store(RedisCommands(client), limits, process.clock)


def _tokens(process: Process, settings: GatewaySettings) -> TokenChecker | None:
    if not settings.jwt_issuer:
        return None
    # Only here: the library of cryptography takes memory.
    from services.gateway.identity.tokens import tokens_of

    try:
        return tokens_of(settings, fetch, process.clock)
    except ValueError as error:
        raise Misconfigured(str(error)) from error


def _safety(settings: GatewaySettings) -> SafetyHook | None:
    if not settings.safety_url:
        return None
    # Only here: without the setting its library is not imported.
    from services.gateway.clients.moderation import ModerationClient

    try:
        client = ModerationClient(
            settings.safety_url, settings.safety_model, settings.safety_key_file
        )
    except OSError as error:
        raise Misconfigured(f"safety_key_file: {error}") from error
    fails_open = settings.safety_fails == "open"
    return SafetyHook(client, settings.safety_timeout_s, fails_open=fails_open)


def _meter(settings: GatewaySettings) -> None:
    """Say how much this process's metrics tell apart."""
    instruments.METERING.most_models = settings.metered_models
    instruments.METERING.gen_ai = settings.gen_ai_metrics


def _limits(settings: GatewaySettings) -> Limits:
    num_bytes = settings.max_held_body_bytes
    # A tenant may always send one body.
    num_bytes_of_tenant = max(int(num_bytes * settings.tenant_share), settings.max_body_bytes)
    return Limits(
        default_output_reservation=settings.default_output_reservation,
        max_logprobs=settings.max_logprobs,
        token_gap_s=settings.token_gap_s,
        full_wait_s=settings.full_wait_s,
        slow_first_token_s=settings.slow_first_token_s,
        max_open_requests=settings.max_open_requests,
        share_of_requests=max(int(settings.max_open_requests * settings.tenant_share), 1),
        bodies=ByteLimits(num_bytes, num_bytes_of_tenant),
        vectors=ByteLimits(settings.max_held_vector_bytes, settings.max_held_vector_bytes // 2),
    )


def _app(gateway: Gateway, settings: GatewaySettings) -> App:
    return App(
        gateway,
        max_body_bytes=settings.max_body_bytes,
        max_open_requests=settings.max_open_requests,
        deadline_s=settings.deadline_s,
        stall_s=settings.stall_s,
        num_proxies=settings.num_proxies,
        certificates=_certificates(settings),
        trace_url=settings.trace_url,
        traces=TraceBorder(settings.trust_traces),
    )


def _certificates(settings: GatewaySettings) -> Certificates | None:
    if not settings.certificate_proxies:
        return None
    try:
        return Certificates(settings.certificate_proxies, settings.certificate_name)
    except ValueError as error:
        raise Misconfigured(f"certificate_proxies: {error}") from error


def _server(app: App, settings: GatewaySettings, place: ProcessPlace | None) -> HttpServer:
    try:
        for_pages = with_cors(app, settings.cors_origins)
    except ValueError as error:
        raise Misconfigured(str(error)) from error
    # Uvicorn's own cap must not come before ours, which ends streams with an error event.
    drain_cap_s = settings.unready_s + settings.drain_s + LAST_SETTLES_S
    return HttpServer(
        for_pages,
        drain_cap_s=drain_cap_s,
        stall_s=settings.stall_s,
        place=place,
        callers=_callers(settings),
    )


def _callers(settings: GatewaySettings) -> HttpCallers | None:
    if not settings.callers:
        return None
    identity = peer_tls.of_process()
    if identity is None:
        raise Misconfigured(f"{PREFIX}CALLERS needs the certificate of {peer_tls.PREFIX}*_FILE")
    return HttpCallers(identity, settings.callers)


async def _leave(gateway: Gateway, app: App, server: HttpServer, settings: GatewaySettings) -> None:
    """Drain: become not ready, then take no new connections, then wait for open requests, which are
    cut off after the cap."""
    gateway.readiness.draining = True
    server.announce_drain()
    _log.info("draining", num_requests=app.num_open)
    await asyncio.sleep(settings.unready_s)
    server.drain()
    is_idle, _ = await asyncio.gather(
        app.idle(settings.drain_s), gateway.leave_batches(settings.drain_s)
    )
    if not is_idle:
        app.cut_off()


def main() -> None:
    settings = environment.load(GatewaySettings, PREFIX)

    _meter(settings)

    async def served(process: Process) -> None:
        place = place_of(sys.argv[1:], settings)
        if place is None and settings.processes > 1:
            await serve_all(process, settings)
        else:
            await serve(process, settings, place=place)

    run("gateway", served, instruments.KNOWN_SERIES)


if __name__ == "__main__":
    main()
