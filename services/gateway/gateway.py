"""The gateway's domain in one object: the pipeline and the background loops that it needs.

Built from clients, a clock and randomness, so that it runs the same under uvicorn and gRPC as in
the in-process simulation. Opens no socket itself.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest, quoted
from baton.wire.v1 import router_pb2
from services.gateway import instruments
from services.gateway.batches.run import RunDeps
from services.gateway.batches.runner import BatchRunner
from services.gateway.batches.store import BatchStore
from services.gateway.clients.protocols import (
    BodyParser,
    CallContext,
    Dial,
    QuotaClient,
    RouterClient,
    RunInThread,
    TokenizerClient,
)
from services.gateway.kept_traces import KeptTraces
from services.gateway.model_list import ModelCards
from services.gateway.readiness import FleetRoom, Readiness
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.deps import AttemptDeps, PipelineDeps
from services.gateway.request.limits import Limits
from services.gateway.request.pipeline import Pipeline
from services.gateway.request.prompt_estimate import PromptEstimates
from services.gateway.request.reservation import Reservations
from services.gateway.request.room import Bodies, ByteRooms, OpenRequests
from services.gateway.routing.explanations import Explanations
from services.gateway.routing.fallback_picker import FallbackPicker
from services.gateway.routing.full_lines import FullLines
from services.gateway.routing.models import Aliases, ModelDirectory
from services.gateway.routing.ready_workers import ReadyWorkers
from services.gateway.routing.routers import Routers
from services.gateway.routing.worker_totals import WorkersTotals
from services.gateway.safety.hook import SafetyHook
from services.gateway.stored.store import Store
from services.gateway.stored.threads import StoredThreads
from services.gateway.tenants.auth import Authenticator, TokenChecker
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.outbox import Outbox
from services.gateway.tenants.outbox_files import OutboxFiles
from services.gateway.tenants.quota_outage import GuardedQuota
from services.gateway.tenants.refusals import Refusals
from services.gateway.text.detokenize import Artifacts
from services.gateway.workers.migration import EarlyMigration, MigrationLimiter
from services.gateway.workers.worker_links import WorkerLinks


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients that a gateway needs."""

    quota: QuotaClient
    tokenizer: TokenizerClient
    # By address; one of them is active for each model (routing/routers.py).
    routers: Mapping[str, RouterClient]
    dial: Dial
    outbox_files: OutboxFiles
    in_thread: RunInThread
    body_parser: BodyParser
    # None: nothing is kept for clients.
    store: Store | None = None
    # None where API keys are the only way in.
    tokens: TokenChecker | None = None
    # None where nothing is judged.
    safety: SafetyHook | None = None


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """The name of this gateway in this life, and the secrets it shares with its fleet."""

    gateway_id: str
    # The one in use, and older ones whose API keys are still good.
    secrets: tuple[bytes, ...]
    zone: str = ""


class Gateway:
    """One gateway. `run` runs its background loops until cancelled.

    It has an attribute for each part that the HTTP edge, the admin port, the process and its own
    loops use, hence many.
    """

    def __init__(
        self,
        clients: Clients,
        own: GatewayIdentity,
        clock: Clock,
        rng: random.Random,
        *,
        aliases: Aliases | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._quota = GuardedQuota(clients.quota, clock, rng)
        self._buckets = LocalBuckets(clock)
        self.clock = clock
        self.rng = rng
        self.directory = ModelDirectory(aliases or {}, rng, clock)
        self.authenticator = Authenticator(self._quota, own.secrets, clock, clients.tokens)
        self.leases = LeaseRenewer(self._quota, self._buckets, own.gateway_id, rng)
        self._tokens = clients.tokens
        self.worker_totals = WorkersTotals()
        self.leases.totals_of_workers = self.worker_totals.take
        self._ready_workers = ReadyWorkers()
        migration = EarlyMigration(rng, self._ready_workers.has_another, clock)
        self.links = WorkerLinks(clients.dial, own.gateway_id, clock, migration)
        self.auditor = GatewayAuditor(self.leases, self.links)
        self.explanations = Explanations()
        self.outbox = Outbox(clients.outbox_files, clients.quota, clients.in_thread)
        fallback_picker = FallbackPicker(rng, self._ready_workers, self.links.num_open)
        self._routers = Routers(
            clients.routers, clock, rng, self._take_in, fallback_picker.pick, own.zone
        )
        self._room = FleetRoom((limits or Limits()).full_wait_s)
        self.readiness = Readiness(
            self._quota,
            clients.tokenizer,
            self.directory,
            self._routers,
            self.authenticator,
            self._room,
            clock,
        )
        self.store = clients.store
        self._artifacts = artifacts = Artifacts(clients.tokenizer, clients.in_thread)
        self.directory.has_tokenizer = artifacts.has
        self.cards = ModelCards(self.directory, artifacts, int(clock.unix()))
        self.pipeline = self._pipeline(clients, artifacts, own.secrets[0], limits or Limits())
        self._routers.on_cancelled = self.pipeline.cancel
        self.batches = None if clients.store is None else BatchStore(clients.store)
        self._batch_runner = self._runner(own.gateway_id)

    async def run(self) -> None:
        """Follow the fleet, renew leases, run the workers' links, replay the outbox, audit."""
        async with asyncio.TaskGroup() as tasks:
            for owner in (self._routers, self._quota, self.leases, self.links):
                tasks.create_task(owner.run())
            for watcher in (self.readiness, self.outbox, self.auditor, self._artifacts):
                tasks.create_task(watcher.run())
            for one in (self._tokens, self._batch_runner):
                if one is not None:
                    tasks.create_task(one.run())

    async def leave_batches(self, timeout_s: float) -> None:
        """Let the lines of batches that have begun end, and give the batches to other gateways."""
        if self._batch_runner is not None:
            await self._batch_runner.leave(timeout_s)

    async def close(self) -> None:
        """Close the workers' links, once no request is open, and tell quota what workers did."""
        await self.links.close_all()
        await self.tell_workers()
        if self.store is not None:
            await self.store.close()

    async def tell_workers(self) -> None:
        """Tell quota what the workers did until now, if it answers in a moment."""
        if models := await self._routers.look():
            self.worker_totals.update(models)
        self.worker_totals.tell_all()
        await self.leases.beat()

    async def cancel(self, request_id: str, tenant: str, context: CallContext) -> bool:
        """End a running request of a tenant. True when it ran here; else the other gateways are
        told, and the one that has it ends it. Raises InvalidRequest when there are none."""
        if self.pipeline.cancel(request_id, tenant):
            return True
        if self._buckets.num_gateways < 2:
            raise InvalidRequest(f"no request {quoted(request_id)} is running", reason="not_found")
        request = router_pb2.CancelRequest(request_id=request_id, tenant=tenant)
        await self._routers.cancel(request, context)
        return False

    def unready_reasons(self) -> list[str]:
        """The reasons why this gateway cannot serve; empty when it is ready."""
        return self.readiness.state().unready

    def _take_in(self, models: Sequence[router_pb2.ModelState]) -> None:
        """Take in the fleet as the routers see it now; the last view stays while none speaks."""
        self.worker_totals.update(models)
        self.directory.update(models)
        self._artifacts.want(self.directory.contested())
        self._ready_workers.update(models)
        self._room.update(models)
        for worker in (worker for model in models for worker in model.workers):
            if worker.ejected:
                self.links.lose(worker.worker_id)
        instruments.GATEWAY_OUTBOX_RECORDS.set(self.outbox.num_waiting)

    def _runner(self, gateway_id: str) -> BatchRunner | None:
        if self.batches is None:
            return None
        return BatchRunner(
            RunDeps(
                store=self.batches,
                pipeline=self.pipeline,
                authenticator=self.authenticator,
                directory=self.directory,
                clock=self.clock,
                rng=self.rng,
                gateway_id=gateway_id,
            )
        )

    def _pipeline(
        self, clients: Clients, artifacts: Artifacts, server_secret: bytes, limits: Limits
    ) -> Pipeline:
        refusals, bodies = Refusals(self.clock), Bodies(clients.body_parser, limits.bodies)
        return Pipeline(
            PipelineDeps(
                clock=self.clock,
                rng=self.rng,
                server_secret=server_secret,
                limits=limits,
                authenticator=self.authenticator,
                threads=StoredThreads(clients.store, bodies),
                open_requests=OpenRequests(limits.max_open_requests, limits.share_of_requests),
                bodies=bodies,
                vector_rooms=ByteRooms(limits.vectors, "lists of inputs"),
                directory=self.directory,
                tokenizer=clients.tokenizer,
                in_thread=clients.in_thread,
                artifacts=artifacts,
                estimates=PromptEstimates(),
                refusals=refusals,
                full_lines=FullLines(self.clock),
                reservations=Reservations(
                    self._quota, self._buckets, refusals, self.leases, self.outbox, self.auditor
                ),
                auditor=self.auditor,
                kept_traces=KeptTraces(self.clock, limits.slow_first_token_s),
                attempts=AttemptDeps(
                    clock=self.clock,
                    limits=limits,
                    server_secret=server_secret,
                    leases=self.leases,
                    router=self._routers,
                    links=self.links,
                    migrations=MigrationLimiter(self.rng),
                    explanations=self.explanations,
                    safety=clients.safety,
                ),
            )
        )
