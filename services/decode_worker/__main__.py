"""The decode worker process: build the objects, serve until asked to stop."""

import grpc

from baton.runtime import environment
from baton.runtime.process import Process, run
from baton.wire.v1 import router_pb2, worker_pb2_grpc
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from baton.worker.program import serve_worker
from baton.worker.settings import ENVIRONMENT_PREFIX, Settings
from services.decode_worker.front import DecodeFront
from services.decode_worker.servicer import DecodeWorkerServicer, dial_prefill


class DecodeProgram(DecodeFront):
    """The front with its gRPC service and its way to prefill workers."""

    def __init__(self, deps: WorkerDeps) -> None:
        super().__init__(deps, dial_prefill)

    def register(self, server: grpc.aio.Server) -> None:
        servicer = DecodeWorkerServicer(self)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(servicer, server)


def main() -> None:
    settings = environment.load(Settings, ENVIRONMENT_PREFIX)

    async def served(process: Process) -> None:
        await serve_worker(process, settings, router_pb2.WORKER_ROLE_DECODE, DecodeProgram)

    run("decode_worker", served, instruments.DECODE_SERIES)


if __name__ == "__main__":
    main()
