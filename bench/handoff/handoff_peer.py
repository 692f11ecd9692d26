"""The sending process of `python -m bench handoff`.

`python -m bench.handoff.handoff_peer FOLDER NUM_BLOCKS TRANSPORT...`

Serves the handoff stream as a prefill worker does, but computes nothing: its KV is there, or
becomes final in NUM_CHUNKS steps within the time that a Prefill names as its deadline. Beside it,
the same bytes over a bare gRPC stream and over a bare socket. Prints one JSON line when it serves,
and ends with its standard input.
"""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import uvloop

from baton.handoff.block_bytes import KEPT_BYTES, MAX_DATA_BYTES
from baton.handoff.frame_codec import OutFrame
from baton.handoff.negotiation import Transports
from baton.handoff.sender import Sender
from baton.handoff.ticket import Ticket
from baton.handoff.transport import SendingEnd
from baton.handoff.transports import handoff_method
from baton.runtime.grpc_server import start_server
from baton.runtime.shared_stream import FrameWriter, ServerFrameStream, StreamRunner
from baton.system.allocator import keep_freed_memory
from baton.system.parent_death import die_with_parent
from baton.wire.v1 import handoff_pb2, handoff_pb2_grpc
from bench.handoff.handoff_pair import (
    BARE_METHOD,
    BLOCK_SIZE,
    NUM_CHUNKS,
    PEER_ID,
    Pool,
    source_bytes,
)


class SendingSession:
    """One stream: blocks leave as far as the peer's credit goes."""

    def __init__(self, stream: Any, pool: Pool, sending: SendingEnd) -> None:
        self._pool = pool
        self._sending = sending
        self._writer: FrameWriter[OutFrame]
        self._writer = FrameWriter(stream, drain=self._next_blocks)
        self._runner = StreamRunner(stream, self._writer, self._on_frame)
        self._credit_bytes = 0
        self._sender: Sender | None = None
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        async with self._tasks:
            await self._runner.run()

    def _on_frame(self, frame: handoff_pb2.DecodeFrame) -> bool:
        kind = frame.WhichOneof("frame")
        if kind == "credit":
            self._credit_bytes += frame.credit.bytes
            self._writer.wake()
        elif kind == "prefill":
            self._tasks.create_task(self._prefill(frame.prefill))
        return bool(kind != "bye")

    async def _prefill(self, request: handoff_pb2.Prefill) -> None:
        num_tokens = request.num_prompt_tokens
        num_blocks = num_tokens // BLOCK_SIZE
        ticket = Ticket(
            request.xfer_id, request.request_id, request.epoch, request.capability, 0, num_blocks
        )
        sender = Sender(ticket, range(num_blocks), self._pool.blocks, self._sending)
        self._sender = sender
        for chunk in range(1, NUM_CHUNKS + 1) if request.deadline_ms else ():
            await asyncio.sleep(request.deadline_ms / 1000 / NUM_CHUNKS)
            sender.advance(num_tokens * chunk // NUM_CHUNKS)
            self._writer.wake()
        sender.finish()
        first = handoff_pb2.FirstTokens(xfer_id=request.xfer_id, token_id=1)
        self._writer.send_control(handoff_pb2.PrefillFrame(first_tokens=first))

    def _next_blocks(self) -> OutFrame | None:
        sender = self._sender
        if sender is None or not sender.has_next():
            return None
        if sender.next_bytes() and self._credit_bytes <= 0:
            return None
        self._credit_bytes -= sender.next_bytes()
        return sender.next_frame()


class PeerServicer(handoff_pb2_grpc.PrefillWorkerServicer):
    """Agrees on a transport and serves the stream."""

    def __init__(self, pool: Pool, transports: Transports) -> None:
        self._pool = pool
        self._transports = transports

    async def Handoff(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        stream: ServerFrameStream[OutFrame] = ServerFrameStream(context)
        first = await stream.read()
        answer = handoff_pb2.PrefillHello(worker_id=PEER_ID)
        sending = self._transports.accept(first.hello, answer)
        await stream.write(handoff_pb2.PrefillFrame(hello=answer))
        await SendingSession(stream, self._pool, sending).run()


class BareStream(grpc.GenericRpcHandler):
    """Messages of raw bytes, without protobuf and without checksums."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def service(self, details: Any) -> Any:
        if details.method != BARE_METHOD:
            return None
        return grpc.unary_stream_rpc_method_handler(self._stream)

    async def _stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), MAX_DATA_BYTES):
            yield bytes(self._data[start : start + MAX_DATA_BYTES])


def serve_socket(data: memoryview) -> int:
    """Answer each byte on a loopback connection with all of `data`; returns the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            while connection.recv(1):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


async def serve(folder: Path, num_blocks: int, names: tuple[str, ...]) -> None:
    pool = Pool(num_blocks)
    pool.memory[:] = source_bytes(num_blocks)
    transports = pool.transports(names, folder, is_sender=True)

    def register(server: grpc.aio.Server) -> None:
        handoff_method.add_to_server(PeerServicer(pool, transports), server)
        server.add_generic_rpc_handlers((BareStream(pool.blocks.memory),))

    server = await start_server("127.0.0.1:0", register)
    ports = {"port": server.port, "socket_port": serve_socket(pool.blocks.memory)}
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


def main(argv: Sequence[str]) -> None:
    die_with_parent()
    keep_freed_memory(KEPT_BYTES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(argv[0]), int(argv[1]), tuple(argv[2:])))


if __name__ == "__main__":
    main(sys.argv[1:])
