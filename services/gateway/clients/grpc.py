"""The ports over gRPC: calls to quota, tokenizer and routers, shared streams to decode workers.

Translates calls and nothing else. Calls ride on one stream to each replica (baton/runtime/calls/).
Replicas of quota and tokenizer share a balanced channel (baton/runtime/grpc_channel.py); the
gateway chooses the router of each pick (routing/routers.py).
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from hashlib import sha256
from random import SystemRandom
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.runtime import grpc_channel
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls, Silent
from baton.runtime.cutoff import CutOff, Cutoff
from baton.runtime.discovery.discover import discover
from baton.runtime.discovery.members import Member, service_target
from baton.runtime.shared_stream import ClientFrameStream
from baton.system.clock import Clock
from baton.wire.call_methods import (
    AUTHENTICATE,
    CANCEL,
    ENCODE,
    PICK,
    RESERVE,
    SETTLE,
    CallMethod,
    Request,
    Response,
)
from baton.wire.failures import BatonError, InternalFailure, Unavailable
from baton.wire.v1 import (
    quota_pb2,
    quota_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
    worker_pb2_grpc,
)
from services.gateway import instruments
from services.gateway.clients.protocols import CallContext, WorkerStream

ARTIFACT_TIMEOUT_S = 60.0
MAX_ARTIFACT_BYTES = 256 * 1024 * 1024
# How long a request waits for any replica of quota, when none is there: leases bridge an outage.
PATIENCE_S = 0.9
# And for a tokenizer, which nothing stands for: as long as it waits in a router for a worker. All
# replicas of either may be gone for a moment.
TOKENIZER_PATIENCE_S = 10.0
LARGE_PROMPT_BYTES = 64 * 1024
# A call to quota that is silent for so long is made again, over another connection.
HUNG_S = 0.1
# No connection to quota is left sooner: if another one helps, it helps for longer.
MIN_LIFE_S = 5.0
# A router that says nothing for this long is lost; it speaks twice a second at least.
WATCH_SILENCE_S = 2.0


class _CallStream(ClientFrameStream[Any]):
    """A stream that tears its call down when it is closed, and its own channel with it."""

    def __init__(self, call: Any, channel: grpc.aio.Channel | None = None) -> None:
        super().__init__(call)
        self._channel = channel

    async def close(self) -> None:
        await super().close()
        self.cancel()
        if self._channel is not None:
            await self._channel.close()


class _RenewalStream(_CallStream):
    """The renewal stream; it ends when its connection is left."""

    def __init__(self, call: Any, leaving: Cutoff) -> None:
        super().__init__(call)
        self._leaving = leaving

    async def read(self) -> Any:
        try:
            async with self._leaving.guard():
                return await super().read()
        except CutOff:
            return None


class _Connection:
    """A channel to all replicas of a service, since when it is there, and what ends when it is
    left. gRPC closes a channel that nobody uses."""

    def __init__(self, endpoints: Sequence[str], service: str, stub: Any, clock: Clock) -> None:
        self.channel = grpc_channel.open_balanced_channel(endpoints, service)
        self.stub = stub(self.channel)
        self.calls = SharedCalls.over_grpc(self.stub, clock, is_balanced=True)
        self.large_calls = SharedCalls.over_grpc(self.stub, clock, is_balanced=True)
        self.since_s = clock.now()
        self.leaving = Cutoff()

    def leave(self) -> None:
        """Running calls end where they are."""
        self.leaving.now()
        self.calls.leave()
        self.large_calls.leave()

    async def close(self) -> None:
        await self.calls.close()
        await self.large_calls.close()
        await self.channel.close()


class _Replicas:
    """The connection to a service, of which there may be several replicas."""

    _service: str
    _stub: Any

    def __init__(self, endpoints: Sequence[str], clock: Clock) -> None:
        self._clock = clock
        self._endpoints = tuple(endpoints)
        self._connection = _Connection(endpoints, self._service, self._stub, clock)

    def move(self, endpoints: Sequence[str]) -> None:
        """Ask the replicas at these endpoints from now on."""
        if tuple(endpoints) != self._endpoints:
            self._endpoints = tuple(endpoints)
            self._reconnect()

    async def follow(self) -> None:
        """Ask the replicas that Kubernetes lists of the Service whose name is the endpoint, until
        cancelled; those of its name until some are listed. Raises SettingsError without a cluster.

        A cluster's names are cached for 30 s, in which a rollout may replace all addresses of one.
        """
        (named,) = self._endpoints

        def found(members: Collection[Member]) -> None:
            self.move([member.address for member in members] or [named])

        source = await discover([service_target(named)], SystemRandom())
        await source.follow(found)

    async def probe(self, deadline_s: float) -> None:
        await _probe(self._connection.channel, deadline_s)

    async def close(self) -> None:
        await self._connection.close()

    def _reconnect(self) -> None:
        left = self._connection
        self._connection = _Connection(self._endpoints, self._service, self._stub, self._clock)
        left.leave()


class GrpcQuota(_Replicas):
    """QuotaClient over all replicas. Every call may be repeated: quota knows it by its usage id.

    A replica that hangs keeps its connections, and would get its share of the calls until gRPC's
    pings find it, in two seconds. So a call that is silent for HUNG_S leaves the channel for a
    fresh one, which has only replicas that answer.
    """

    _service = "quota"
    _stub = quota_pb2_grpc.QuotaStub

    async def authenticate(
        self, key_digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        request = quota_pb2.AuthenticateRequest(key_digest=key_digest)
        return await self._call(AUTHENTICATE, request, context)

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        return await self._call(RESERVE, request, context)

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        await self._call(SETTLE, quota_pb2.SettleRequest(usage=record), context, 0.0)

    async def open_renewals(self) -> ClientFrameStream[quota_pb2.RenewRequest]:
        connection = self._connection
        call = connection.stub.Renew(metadata=grpc_channel.outgoing())
        return _RenewalStream(call, connection.leaving)

    async def _call(
        self,
        method: CallMethod[Request, Response],
        request: Request,
        context: CallContext,
        patience_s: float = PATIENCE_S,
    ) -> Response:
        """Make a call, again if it is silent."""
        began_s, connection = self._clock.now(), self._connection
        deadline_s = context.deadline_s
        if deadline_s > HUNG_S:
            terms = _terms(context, deadline_s, patience_s, HUNG_S)
            try:
                return await connection.calls.call(method, request, terms)
            except Silent:
                self._leave(connection)
                deadline_s -= self._clock.now() - began_s
        terms = _terms(context, deadline_s, patience_s)
        return await self._connection.calls.call(method, request, terms)

    def _leave(self, connection: _Connection) -> None:
        """Open another connection, unless there is one already or this one is young."""
        now_s = self._clock.now()
        if connection is self._connection and now_s >= connection.since_s + MIN_LIFE_S:
            self._reconnect()
            instruments.GATEWAY_QUOTA_RECONNECTS.inc()


class GrpcTokenizer(_Replicas):
    """TokenizerClient over all replicas. Its calls change nothing, so they may be repeated.

    Large prompts have streams of their own: none waits behind another tenant's megabytes.
    """

    _service = "tokenizer"
    _stub = tokenizer_pb2_grpc.TokenizerStub

    async def encode(
        self, request: tokenizer_pb2.EncodeRequest, context: CallContext
    ) -> tokenizer_pb2.EncodeResponse:
        is_large = request.ByteSize() > LARGE_PROMPT_BYTES
        calls = self._connection.large_calls if is_large else self._connection.calls
        try:
            return await calls.call(
                ENCODE, request, _terms(context, context.deadline_s, TOKENIZER_PATIENCE_S)
            )
        except Unavailable as error:
            if error.reason == "unavailable":
                raise _no_tokenizer() from error
            raise

    async def artifact(self, model_fp: str) -> bytes:
        """Fetch a model's artifact. Raises InternalFailure when it does not match its digest."""
        call = self._connection.stub.GetArtifact(
            tokenizer_pb2.GetArtifactRequest(model_fp=model_fp),
            timeout=ARTIFACT_TIMEOUT_S,
            metadata=grpc_channel.outgoing(),
        )
        data, digest = bytearray(), ""
        try:
            async for part in call:
                digest = digest or part.header.digest
                data += part.data
                if len(data) > MAX_ARTIFACT_BYTES:
                    raise InternalFailure("the tokenizer artifact is larger than 256 MiB")
        except grpc.aio.AioRpcError as error:
            failure = grpc_channel.failure_of(error)
            raise _no_tokenizer() if failure.reason == "unavailable" else failure from error
        if sha256(data).hexdigest() != digest:
            raise InternalFailure("the tokenizer artifact does not match its digest")
        return bytes(data)


class GrpcRouter:
    """RouterClient of one router."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self._channel = grpc_channel.open_channel(endpoint, "router")
        self._stub = router_pb2_grpc.RouterStub(self._channel)
        self._calls = SharedCalls.over_grpc(self._stub, clock, is_balanced=False)

    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        # Another router may be there: no patience.
        return await self._calls.call(PICK, request, _terms(context, context.deadline_s, 0.0))

    async def cancel(self, request: router_pb2.CancelRequest, context: CallContext) -> None:
        await self._calls.call(CANCEL, request, _terms(context, context.deadline_s, 0.0))

    async def watch_admission(self) -> AsyncGenerator[router_pb2.WatchAdmissionResponse, None]:
        call = self._stub.WatchAdmission(
            router_pb2.WatchAdmissionRequest(takes_deltas=True), metadata=grpc_channel.outgoing()
        )
        try:
            while True:
                # The timeout cancels the call: a silent router counts as lost.
                async with asyncio.timeout(WATCH_SILENCE_S):
                    view = await call.read()
                if view is grpc.aio.EOF:
                    raise Unavailable("the router ended its watch")
                yield view
        except TimeoutError:
            raise Unavailable("the router is silent") from None
        except grpc.aio.AioRpcError as error:
            raise grpc_channel.failure_of(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        await self._calls.close()
        await self._channel.close()


def _no_tokenizer() -> BatonError:
    """The failure as clients may read it: gRPC's own message names internal addresses."""
    return Unavailable("no tokenizer answers", retry_after_s=1)


async def dial_worker(endpoint: str) -> WorkerStream:
    """A fresh shared stream to a decode worker, on a channel of its own."""
    channel = grpc_channel.open_channel(endpoint, "worker", link=True, small_window=True)
    call = worker_pb2_grpc.DecodeWorkerStub(channel).Serve()
    stream: WorkerStream = _CallStream(call, channel)
    return stream


def _terms(
    context: CallContext, deadline_s: float, patience_s: float, silence_s: float = math.inf
) -> CallTerms:
    return CallTerms(deadline_s, patience_s, silence_s, context.request_id, context.traceparent)


async def _probe(channel: grpc.aio.Channel, deadline_s: float) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    answer = await grpc_channel.call(
        health.Check, health_pb2.HealthCheckRequest(), deadline_s=deadline_s
    )
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable("not serving")
