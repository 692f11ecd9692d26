"""The worker's gRPC side of WorkerReports: streams a ReportLog to each router that dials in.

Decides nothing; pace, backlog and snapshots are the log's business (`reports.py`).
"""

import asyncio
from typing import Any

import grpc

from baton.runtime.grpc_server import translate_failures
from baton.runtime.shared_stream import FrameStream, ServerFrameStream, StreamLost
from baton.wire.protocol import agree
from baton.wire.v1 import worker_pb2, worker_pb2_grpc
from baton.worker.reports import ReportLog, ReportSubscription

ReportStream = FrameStream[worker_pb2.ReportAck, worker_pb2.Report]


class WorkerReportsServicer(worker_pb2_grpc.WorkerReportsServicer):
    """Add it to the worker's server; close the log before the server stops."""

    def __init__(self, log: ReportLog) -> None:
        self._log = log

    @translate_failures
    async def Watch(self, acks: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await serve_reports(ServerFrameStream(context), self._log)


async def serve_reports(stream: ReportStream, log: ReportLog) -> None:
    """Serve one router until it leaves or the log is closed.

    Raises Incompatible for a router of another protocol version, Overloaded for one too many.
    """
    hello = await stream.read()
    if hello is None:
        return
    agree(hello.protocol, peer=hello.router_id or "a router", own=log.register.worker_id)
    with log.subscribe(_place(hello, log)) as subscription:
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(_read_acks(stream, subscription))
                await _write_reports(stream, subscription)
                reader.cancel()
        except* StreamLost:
            pass  # The router dials again when it can.


def _place(hello: worker_pb2.ReportAck, log: ReportLog) -> int | None:
    """The router's place in the KV events of this process, if it has one."""
    is_here = hello.HasField("resume") and hello.resume.boot_epoch == log.register.boot_epoch
    return hello.resume.position if is_here else None


async def _read_acks(stream: ReportStream, subscription: ReportSubscription) -> None:
    while (ack := await stream.read()) is not None:
        subscription.acknowledge(ack)
    raise StreamLost("the router left")


async def _write_reports(stream: ReportStream, subscription: ReportSubscription) -> None:
    while reports := await subscription.next_reports():
        for report in reports:
            await stream.write(report)
