"""The gateway's domain in one object: the pipeline and the loops that keep it supplied.

Built from ports, a clock and randomness, so that it runs the same under uvicorn and gRPC as in the
in-process simulation. Opens no socket itself.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import BatonError
from baton.wire.v1 import router_pb2
from services.gateway import instruments
from services.gateway.clients.protocols import (
    Dial,
    QuotaClient,
    RouterClient,
    RunInThread,
    TokenizerClient,
)
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.parts import Limits, Parts
from services.gateway.request.pipeline import Pipeline
from services.gateway.routing.fallback_picker import LastView
from services.gateway.routing.models import Aliases, ModelDirectory
from services.gateway.routing.routers import Routers
from services.gateway.tenants.auth import Authenticator
from services.gateway.tenants.leases import LeaseKeeper
from services.gateway.tenants.outbox import Outbox, OutboxFile
from services.gateway.tenants.quota_outage import GuardedQuota, LocalBuckets
from services.gateway.text.detokenize import Artifacts
from services.gateway.workers.migration import MoveGate
from services.gateway.workers.worker_links import WorkerLinks

_PROBE_TIMEOUT_S = 0.5
# A service that answered within this time counts as reachable: all gateways ask the same ones, and
# a busy moment must not take all of them out of rotation together.
REACHED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Outside:
    """The ports that a gateway needs."""

    quota: QuotaClient
    tokenizer: TokenizerClient
    # By address; one of them is active for each model (routers.py).
    routers: Mapping[str, RouterClient]
    dial: Dial
    outbox_file: OutboxFile
    in_thread: RunInThread


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """Who this gateway is in this life, and the secret it shares with its fleet."""

    gateway_id: str
    server_secret: bytes


class Gateway:
    """One gateway. `run` serves its background work until cancelled."""

    def __init__(
        self,
        outside: Outside,
        own: GatewayIdentity,
        clock: Clock,
        rng: random.Random,
        *,
        aliases: Aliases | None = None,
        limits: Limits | None = None,
    ) -> None:
        quota = GuardedQuota(outside.quota, clock, rng)
        self.clock = clock
        self.rng = rng
        # Not ready: whoever balances over gateways shall take another one.
        self.draining = False
        self._outside = outside
        self._reached_s: dict[str, float] = {}
        self.directory = ModelDirectory(aliases or {}, rng, clock)
        self.authenticator = Authenticator(quota, own.server_secret, clock)
        self.leases = LeaseKeeper(outside.quota, rng)
        self.moves = MoveGate(rng, lambda model, worker: self.last_view.has_another(model, worker))
        self.links = WorkerLinks(outside.dial, own.gateway_id, clock, self.moves)
        self.last_view = LastView(rng, self.links.num_open)
        self.auditor = GatewayAuditor(self.leases, self.links)
        self.outbox = Outbox(outside.outbox_file, outside.quota, outside.in_thread)
        self.artifacts = Artifacts(outside.tokenizer, outside.in_thread)
        self.routers = Routers(outside.routers, clock, rng, self._take_in, self.last_view.pick)
        self.pipeline = Pipeline(self._parts(quota, own.server_secret, limits or Limits()))

    async def run(self) -> None:
        """Follow the fleet, renew leases, own the workers' streams, replay the outbox, audit."""
        async with asyncio.TaskGroup() as tasks:
            for owner in (self.routers, self.leases, self.links, self.outbox, self.auditor):
                tasks.create_task(owner.run())

    async def close(self) -> None:
        """Announce the end on the workers' streams, once no request is open."""
        await self.links.close_all()

    async def unready_reasons(self) -> list[str]:
        """Why this gateway cannot serve; empty when it is ready."""
        reasons = ["draining"] if self.draining else []
        names = ("quota", "tokenizer")
        probes = (self._outside.quota.probe, self._outside.tokenizer.probe)
        for name, answers in zip(names, await asyncio.gather(*map(_answers, probes)), strict=True):
            if answers:
                self._reached_s[name] = self.clock.now()
            elif self.clock.now() - self._reached_s.get(name, -math.inf) > REACHED_WITHIN_S:
                reasons.append(f"{name} service unreachable")
        # A gateway that has heard of workers once can serve without a router (last_view.py).
        if not self.directory.num_ready_models:
            heard = self.routers.is_any_heard
            reasons.append("no model has a ready worker" if heard else "router unreachable")
        return reasons

    def _take_in(self, models: Sequence[router_pb2.ModelState]) -> None:
        """The fleet as the routers see it now; the last view stays while none speaks."""
        self.directory.update(models)
        self.last_view.update(models)
        for worker in (worker for model in models for worker in model.workers):
            if worker.ejected:
                self.links.lose(worker.worker_id)
        instruments.GATEWAY_OUTBOX_RECORDS.set(self.outbox.num_waiting)

    def _parts(self, quota: QuotaClient, server_secret: bytes, limits: Limits) -> Parts:
        outside = self._outside
        return Parts(
            clock=self.clock,
            rng=self.rng,
            server_secret=server_secret,
            limits=limits,
            authenticator=self.authenticator,
            directory=self.directory,
            tokenizer=outside.tokenizer,
            artifacts=self.artifacts,
            quota=quota,
            local_buckets=LocalBuckets(self.clock),
            leases=self.leases,
            router=self.routers,
            links=self.links,
            auditor=self.auditor,
            moves=self.moves,
            outbox=self.outbox,
            in_thread=outside.in_thread,
        )


async def _answers(probe: Callable[[float], Awaitable[None]]) -> bool:
    try:
        await probe(_PROBE_TIMEOUT_S)
    except BatonError:
        return False
    return True
