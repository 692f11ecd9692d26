"""The objects that the pipeline and its attempts drive."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from baton.system.clock import Clock
from baton.wire.v1 import tokenizer_pb2
from services.gateway.clients.protocols import RunInThread, TokenizerClient
from services.gateway.kept_traces import KeptTraces
from services.gateway.openai.generation import GenerationRequest, Identity, Thread
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.incoming import AnswerSink
from services.gateway.request.job import ValidRequest
from services.gateway.request.limits import Limits
from services.gateway.request.prompt_estimate import PromptEstimates
from services.gateway.request.reservation import Reservations
from services.gateway.request.room import Bodies, ByteRooms, OpenRequests
from services.gateway.routing.explanations import Explanations
from services.gateway.routing.full_lines import FullLines
from services.gateway.routing.models import ModelDirectory
from services.gateway.routing.routers import Routers
from services.gateway.safety.hook import SafetyHook
from services.gateway.tenants.auth import Authenticator
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.tenants.principal import Principal
from services.gateway.tenants.refusals import Refusals
from services.gateway.text.detokenize import Artifacts
from services.gateway.workers.migration import MigrationLimiter
from services.gateway.workers.worker_links import WorkerLinks

Encode = Callable[[ValidRequest], Awaitable[tokenizer_pb2.EncodeResponse]]


class Threads(Protocol):
    """The threads of responses (stored/threads.py)."""

    async def resolve(
        self, request: GenerationRequest, thread: Thread, principal: Principal
    ) -> GenerationRequest:
        """The request with the items that stand before its input. Raises InvalidRequest when they
        are not there, Unavailable."""

    def keeping(
        self, sink: AnswerSink, identity: Identity, request: GenerationRequest
    ) -> AnswerSink:
        """The sink of an answer that is kept as it ends, where that is wanted."""

    async def encode_fitting(
        self, valid: ValidRequest, encode: Encode, num_room: int
    ) -> tokenizer_pb2.EncodeResponse:
        """The prompt's tokens, without its oldest turns if all are too many."""


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
    # None where nothing is judged.
    safety: SafetyHook | None = None


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
    threads: Threads
    bodies: Bodies
    # Of lists of inputs whose answer is vectors.
    vector_rooms: ByteRooms
    directory: ModelDirectory
    tokenizer: TokenizerClient
    in_thread: RunInThread
    artifacts: Artifacts
    estimates: PromptEstimates
    refusals: Refusals
    full_lines: FullLines
    reservations: Reservations
    auditor: GatewayAuditor
    kept_traces: KeptTraces
    attempts: AttemptDeps
