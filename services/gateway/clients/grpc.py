"""The ports over gRPC: channels to quota, tokenizer and routers, shared streams to decode workers.

Translates calls and nothing else. Replicas of quota and tokenizer share a balanced channel
(baton/runtime/grpc_channel.py); the gateway chooses the router of each pick (routing/routers.py).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.runtime import grpc_channel
from baton.runtime.shared_stream import ClientFrameStream
from baton.system.clock import Clock
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
from services.gateway.clients.protocols import CallContext, WorkerStream

ARTIFACT_TIMEOUT_S = 60.0
MAX_ARTIFACT_BYTES = 256 * 1024 * 1024
# How long a request waits for any replica of a service, when none is there.
PATIENCE_S = 0.9
# A router that says nothing for this long is lost; it speaks every 100 ms.
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


class GrpcQuota:
    """QuotaClient over all replicas. Every call may be repeated: quota knows it by its usage id."""

    def __init__(self, endpoints: Sequence[str], clock: Clock) -> None:
        self._clock = clock
        self._channel = grpc_channel.open_balanced_channel(endpoints)
        self._stub = quota_pb2_grpc.QuotaStub(self._channel)

    async def authenticate(
        self, key_digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        request = quota_pb2.AuthenticateRequest(key_digest=key_digest)
        answer: quota_pb2.AuthenticateResponse = await _call(
            self._clock, self._stub.Authenticate, request, context
        )
        return answer

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        answer: quota_pb2.ReserveResponse = await _call(
            self._clock, self._stub.Reserve, request, context
        )
        return answer

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        request = quota_pb2.SettleRequest(usage=record)
        await _call(self._clock, self._stub.Settle, request, context, 0.0)

    async def open_renewals(self) -> ClientFrameStream[quota_pb2.RenewRequest]:
        return _CallStream(self._stub.Renew(metadata=grpc_channel.outgoing()))

    async def probe(self, deadline_s: float) -> None:
        await _probe(self._clock, self._channel, deadline_s)

    async def close(self) -> None:
        await self._channel.close()


class GrpcTokenizer:
    """TokenizerClient over all replicas. Its calls change nothing, so they may be repeated."""

    def __init__(self, endpoints: Sequence[str], clock: Clock) -> None:
        self._clock = clock
        self._channel = grpc_channel.open_balanced_channel(endpoints)
        self._stub = tokenizer_pb2_grpc.TokenizerStub(self._channel)

    async def encode(
        self, request: tokenizer_pb2.EncodeRequest, context: CallContext
    ) -> tokenizer_pb2.EncodeResponse:
        try:
            answer: tokenizer_pb2.EncodeResponse = await _call(
                self._clock, self._stub.Encode, request, context
            )
            return answer
        except BatonError as error:
            raise _of_tokenizer(error) from error

    async def artifact(self, model_fp: str) -> bytes:
        """Fetch a model's artifact. Raises InternalFailure when it does not match its digest."""
        call = self._stub.GetArtifact(
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
            raise _of_tokenizer(grpc_channel.failure_of(error)) from error
        if sha256(data).hexdigest() != digest:
            raise InternalFailure("the tokenizer artifact does not match its digest")
        return bytes(data)

    async def probe(self, deadline_s: float) -> None:
        await _probe(self._clock, self._channel, deadline_s)

    async def close(self) -> None:
        await self._channel.close()


class GrpcRouter:
    """RouterClient of one router."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self._clock = clock
        self._channel = grpc_channel.open_channel(endpoint)
        self._stub = router_pb2_grpc.RouterStub(self._channel)

    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        # Another router may be there: no patience.
        answer: router_pb2.PickResponse = await _call(
            self._clock, self._stub.Pick, request, context, 0.0
        )
        return answer

    async def watch_admission(self) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        call = self._stub.WatchAdmission(
            router_pb2.WatchAdmissionRequest(), metadata=grpc_channel.outgoing()
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
        await self._channel.close()


def _of_tokenizer(error: BatonError) -> BatonError:
    """The failure as clients may read it: gRPC's own message names internal addresses."""
    if error.reason != "unavailable":
        return error
    return Unavailable("no tokenizer answers", retry_after_s=1)


async def dial_worker(endpoint: str) -> WorkerStream:
    """A fresh shared stream to a decode worker, on a channel of its own."""
    channel = grpc_channel.open_channel(endpoint, link=True, small_window=True)
    call = worker_pb2_grpc.DecodeWorkerStub(channel).Serve()
    stream: WorkerStream = _CallStream(call, channel)
    return stream


async def _call(
    clock: Clock, method: Any, request: Any, context: CallContext, patience_s: float = PATIENCE_S
) -> Any:
    return await grpc_channel.call(
        method,
        request,
        clock=clock,
        deadline_s=context.deadline_s,
        patience_s=patience_s,
        request_id=context.request_id,
        traceparent=context.traceparent,
    )


async def _probe(clock: Clock, channel: grpc.aio.Channel, deadline_s: float) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    answer = await grpc_channel.call(
        health.Check, health_pb2.HealthCheckRequest(), clock=clock, deadline_s=deadline_s
    )
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable("not serving")
