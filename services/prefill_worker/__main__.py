"""The prefill worker process: build the objects, serve until asked to stop."""

import grpc

from baton.handoff.transports import handoff_method
from baton.runtime import environment
from baton.runtime.process import Process, run
from baton.wire.v1 import router_pb2, worker_pb2_grpc
from baton.worker import instruments
from baton.worker.program import serve_worker
from baton.worker.settings import ENVIRONMENT_PREFIX, Settings
from services.prefill_worker.front import PrefillFront
from services.prefill_worker.servicer import GatewaysServicer, PrefillWorkerServicer


class PrefillProgram(PrefillFront):
    """The front with its gRPC services."""

    def register(self, server: grpc.aio.Server) -> None:
        handoff_method.add_to_server(PrefillWorkerServicer(self), server)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(GatewaysServicer(self), server)


def main() -> None:
    settings = environment.load(Settings, ENVIRONMENT_PREFIX)

    async def served(process: Process) -> None:
        await serve_worker(process, settings, router_pb2.WORKER_ROLE_PREFILL, PrefillProgram)

    run("prefill_worker", served, instruments.PREFILL_SERIES)


if __name__ == "__main__":
    main()
