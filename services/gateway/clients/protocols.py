"""The protocols of the services that the gateway calls, implemented over gRPC in clients/grpc.py
and by in-memory fakes in tests and the simulation.

All methods raise BatonError on failure: the peer's own, Unavailable when it cannot be reached,
DeadlineExceeded when the context's time ran out.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from baton.runtime.shared_stream import FrameStream
from baton.wire.v1 import quota_pb2, router_pb2, tokenizer_pb2, worker_pb2
from services.gateway.openai.generation import EndpointName, GenerationRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallContext:
    """The words that go with a call. `deadline_s` is the remaining time."""

    request_id: str
    deadline_s: float
    traceparent: str = ""


class QuotaClient(Protocol):
    async def authenticate(
        self, key_digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        """Look up the principal of a key."""

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        """Reserve prompt and output tokens, as a lease."""

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        """End a lease with the usage record of its request."""

    async def open_renewals(
        self,
    ) -> FrameStream[quota_pb2.RenewResponse, quota_pb2.RenewRequest]:
        """Open the one stream that renews all leases of this gateway."""

    async def probe(self, deadline_s: float) -> None:
        """Raise BatonError when the service does not answer."""


class TokenizerClient(Protocol):
    async def encode(
        self, request: tokenizer_pb2.EncodeRequest, context: CallContext
    ) -> tokenizer_pb2.EncodeResponse:
        """Turn a prompt into token ids and block hashes."""

    async def artifact(self, model_fp: str) -> bytes:
        """Fetch the tokenizer files of a model, checked against their digest."""

    async def probe(self, deadline_s: float) -> None:
        """Raise BatonError when the service does not answer."""


class RouterClient(Protocol):
    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        """Pick a pair of workers; waits in the router's queue as long as the deadline allows."""

    async def cancel(self, request: router_pb2.CancelRequest, context: CallContext) -> None:
        """Let the router tell all gateways to end a request."""

    def watch_admission(self) -> AsyncGenerator[router_pb2.WatchAdmissionResponse, None]:
        """Follow the router's view of the fleet, on every change. Ends or raises when the router is
        lost."""


WorkerStream = FrameStream[worker_pb2.WorkerFrame, worker_pb2.GatewayFrame]
# endpoint "host:port" -> a fresh shared stream to that decode worker.
Dial = Callable[[str], Awaitable[WorkerStream]]


class BodyParser(Protocol):
    async def parse(self, endpoint: EndpointName, body: bytes) -> GenerationRequest:
        """Parse a large body beside the event loop."""


class RunInThread(Protocol):
    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Run blocking `work` without blocking the event loop."""
