"""The gRPC sides of the decode worker: gateways' streams in, handoff streams out."""

from typing import Any

import grpc

from baton.handoff.transports.handoff_method import start_call
from baton.runtime.grpc_channel import open_channel
from baton.runtime.shared_stream import ClientFrameStream, ServerFrameStream
from baton.wire.v1 import handoff_pb2, worker_pb2_grpc
from services.decode_worker.front import DecodeFront

_CLOSE_GRACE_S = 1.0


class DecodeWorkerServicer(worker_pb2_grpc.DecodeWorkerServicer):
    """DecodeWorker service."""

    def __init__(self, front: DecodeFront) -> None:
        self._front = front

    async def Serve(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._front.serve(ServerFrameStream(context))


class HandoffCall(ClientFrameStream[handoff_pb2.DecodeFrame]):
    """One handoff stream with a channel of its own, which ends with it."""

    def __init__(self, endpoint: str) -> None:
        self._channel = open_channel(endpoint, "worker", link=True)
        super().__init__(start_call(self._channel))

    async def close(self) -> None:
        """Half-close, let the server end the call, and disconnect."""
        await super().close()
        await self._channel.close(_CLOSE_GRACE_S)


async def dial_prefill(endpoint: str) -> HandoffCall:
    """A handoff stream to the prefill worker at `endpoint`; connects with its first write."""
    return HandoffCall(endpoint)
