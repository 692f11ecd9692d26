"""`python -m bench.handoff.relay_sink ENDPOINT [CPU...]`: reads a front's stream until it ends."""

import asyncio
import os
import sys
from collections.abc import Sequence

from baton.runtime.grpc_channel import open_channel
from baton.runtime.shared_stream import ClientFrameStream
from baton.wire.v1 import worker_pb2, worker_pb2_grpc
from bench.measured_process import put_ahead


async def drain(endpoint: str) -> None:
    async with open_channel(endpoint) as channel:
        call = worker_pb2_grpc.DecodeWorkerStub(channel).Serve()
        stream: ClientFrameStream[worker_pb2.GatewayFrame] = ClientFrameStream(call)
        await stream.write(worker_pb2.GatewayFrame())
        while await stream.read() is not None:
            pass
        await stream.close()


def main(argv: Sequence[str]) -> None:
    endpoint, *cpus = argv
    put_ahead(os.getpid())
    if cpus:
        os.sched_setaffinity(0, map(int, cpus))
    asyncio.run(drain(endpoint))


if __name__ == "__main__":
    main(sys.argv[1:])
