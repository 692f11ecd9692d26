"""The gRPC side of the prefill worker: hands each stream to the front."""

from typing import Any

import grpc

from baton.runtime.shared_stream import ServerFrameStream
from baton.wire.v1 import handoff_pb2_grpc, worker_pb2_grpc
from services.prefill_worker.front import PrefillFront


class PrefillWorkerServicer(handoff_pb2_grpc.PrefillWorkerServicer):
    """PrefillWorker service."""

    def __init__(self, front: PrefillFront) -> None:
        self._front = front

    async def Handoff(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._front.serve(ServerFrameStream(context))


class GatewaysServicer(worker_pb2_grpc.DecodeWorkerServicer):
    """DecodeWorker service, for the time in which this worker stands in for decode workers."""

    def __init__(self, front: PrefillFront) -> None:
        self._front = front

    async def Serve(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._front.serve_gateway(ServerFrameStream(context))
