"""The objects that the pipeline and its attempts drive."""

import random
from dataclasses import dataclass

from baton.system.clock import Clock
from services.gateway.clients.protocols import TokenizerClient
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.bodies import Bodies
from services.gateway.request.limits import Limits
from services.gateway.request.prompt_estimate import PromptEstimates
from services.gateway.request.reservation import Reservations
from services.gateway.routing.explanations import Explanations
from services.gateway.routing.full_lines import FullLines
from services.gateway.routing.models import ModelDirectory
from services.gateway.routing.routers import Routers
from services.gateway.tenants.auth import Authenticator
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.tenants.open_requests import OpenRequests
from services.gateway.tenants.refusals import Refusals
from services.gateway.text.detokenize import Artifacts
from services.gateway.workers.migration import MigrationLimiter
from services.gateway.workers.worker_links import WorkerLinks


@dataclass(frozen=True, slots=True)
class AttemptDeps:
    """The objects that the attempts of all requests of one gateway share."""

    clock: Clock
    limits: Limits
    server_secret: bytes
    leases: LeaseRenewer
    router: Routers
    links: WorkerLinks
    migrations: MigrationLimiter
    explanations: Explanations


@dataclass(frozen=True, slots=True)
class PipelineDeps:
    """The objects that the stages of one gateway's pipeline drive: one field each, hence many. The
    attempts have their own."""

    clock: Clock
    rng: random.Random
    server_secret: bytes
    limits: Limits
    authenticator: Authenticator
    open_requests: OpenRequests
    bodies: Bodies
    directory: ModelDirectory
    tokenizer: TokenizerClient
    artifacts: Artifacts
    estimates: PromptEstimates
    refusals: Refusals
    full_lines: FullLines
    reservations: Reservations
    auditor: GatewayAuditor
    attempts: AttemptDeps
