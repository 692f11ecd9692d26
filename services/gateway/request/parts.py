"""Everything that the pipeline drives, and what the operator sets."""

import random
from dataclasses import dataclass

from baton.system.clock import Clock
from services.gateway.clients.protocols import QuotaClient, RunInThread, TokenizerClient
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.routing.models import ModelDirectory
from services.gateway.routing.routers import Routers
from services.gateway.tenants.auth import Authenticator
from services.gateway.tenants.leases import LeaseKeeper
from services.gateway.tenants.outbox import Outbox
from services.gateway.tenants.quota_outage import LocalBuckets
from services.gateway.text.detokenize import Artifacts
from services.gateway.workers.migration import MoveGate
from services.gateway.workers.worker_links import WorkerLinks


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator sets."""

    default_output_reservation: int = 512
    first_token_s: float = 30.0
    token_gap_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Of one gateway."""

    clock: Clock
    rng: random.Random
    server_secret: bytes
    limits: Limits
    authenticator: Authenticator
    directory: ModelDirectory
    tokenizer: TokenizerClient
    artifacts: Artifacts
    quota: QuotaClient
    local_buckets: LocalBuckets
    leases: LeaseKeeper
    router: Routers
    links: WorkerLinks
    auditor: GatewayAuditor
    moves: MoveGate
    outbox: Outbox
    in_thread: RunInThread
