"""Measures how fast KV blocks move between two processes, beside the machine's best rates.

One process sends (`handoff_peer.py`), this one receives; both with the product's own senders,
receivers and transports, checksums included. In each round of a transport the same bytes are moved
in turn by a plain copy of memory, a plain socket, a bare gRPC stream, and the transport. Then it
moves them once more while the prefill takes longer than that, in NUM_CHUNKS steps: what is left to
wait for at its end is the exposed part.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import uvloop

from baton.handoff.block_bytes import KEPT_BYTES
from baton.handoff.negotiation import Transports
from baton.handoff.receiver import Receiver
from baton.handoff.ticket import RENEW_INTERVAL_S, BadBlocks, Ticket
from baton.handoff.transport import PLAIN, Pages, ReceivingEnd, TransportFailed
from baton.handoff.transports.handoff_method import start_call
from baton.handoff.transports.nixl_agent import NixlMissing
from baton.runtime.grpc_channel import open_channel
from baton.runtime.shared_stream import ClientFrameStream, FrameWriter, StreamLost, StreamRunner
from baton.system.allocator import keep_freed_memory
from baton.wire.v1 import handoff_pb2
from bench.handoff.handoff_pair import BARE_METHOD, BLOCK_SIZE, NUM_CHUNKS, SPEC, Pool, source_bytes
from bench.machine import describe_machine
from bench.measured_process import MeasuredProcess

CREDIT_WINDOW_BYTES = 16 * 2**20
BASELINES = ("memory copy", "socket", "grpc stream")
_PACKAGES = ("grpcio", "protobuf", "isal", "nixl-cu12", "uvloop")
_CAPABILITY = b"bench-capability"
_PEER = "bench.handoff.handoff_peer"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`num_blocks` MiB per transfer; a prefill takes `prefill_factor` times an idle transfer."""

    num_blocks: int = 128
    num_rounds: int = 7
    prefill_factor: float = 2.0
    transports: tuple[str, ...] = ("shm", "nixl", "grpc")
    # Of the core whose prefills are measured.
    num_threads: int = 1


class WrongBytes(Exception):
    """The bytes that arrived are not those that were sent."""


class Refused(Exception):
    """The sending process does not send; the message says why."""


class Link:
    """The receiving side of one stream: one transfer at a time. `run` must run."""

    def __init__(self, stream: Any, pool: Pool, end: ReceivingEnd) -> None:
        self._pool = pool
        self._end = end
        self.transport = end.name
        self._writer: FrameWriter[handoff_pb2.DecodeFrame] = FrameWriter(stream)
        self._runner = StreamRunner(stream, self._writer, self._on_frame)
        self._owed_bytes = 0
        self._last_xfer_id = 0
        self._receiver: Receiver | None = None
        self._prefilled_s = 0.0
        self._complete = asyncio.Event()

    async def run(self) -> None:
        """Raises StreamLost, after which no transfer would ever be complete."""
        self._credit(CREDIT_WINDOW_BYTES)
        await self._runner.run()
        if self._runner.was_lost:
            raise StreamLost("the stream to the sending process")

    async def close(self) -> None:
        await self._runner.finish(handoff_pb2.DecodeFrame(bye={"reason": "done"}))
        self._end.close()

    async def transfer(self, num_blocks: int, prefill_s: float = 0.0) -> tuple[float, float]:
        """Seconds from the request to the last block, and from the end of the prefill to it."""
        return await self.move(num_blocks, lambda ticket: _request(ticket, prefill_s))

    async def move(
        self, num_blocks: int, request: Callable[[Ticket], handoff_pb2.Prefill]
    ) -> tuple[float, float]:
        """As `transfer`, of what `request` asks for."""
        self._last_xfer_id += 1
        ticket = Ticket(self._last_xfer_id, "bench", 1, _CAPABILITY, 0, num_blocks)
        receiver = Receiver(ticket, self._pool.blocks, self._consumed, lambda _: None)
        self._receiver = receiver
        receiver.bind(range(num_blocks))
        self._complete.clear()
        started_s = time.perf_counter()
        self._writer.send(handoff_pb2.DecodeFrame(prefill=request(ticket)))
        await self._wait(ticket)
        ended_s = time.perf_counter()
        done = handoff_pb2.TransferDone(xfer_id=ticket.xfer_id, capability=ticket.capability)
        self._writer.send(handoff_pb2.DecodeFrame(done=done))
        return ended_s - started_s, ended_s - self._prefilled_s

    async def _wait(self, ticket: Ticket) -> None:
        """Until the transfer is complete; its lease is renewed meanwhile."""
        renew = handoff_pb2.RenewTransfers(xfer_ids=[ticket.xfer_id])
        while not self._complete.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_INTERVAL_S):
                    await self._complete.wait()
                    return
            self._writer.send(handoff_pb2.DecodeFrame(renew=renew))

    def _on_frame(self, frame: handoff_pb2.PrefillFrame) -> bool:
        receiver, kind = self._receiver, frame.WhichOneof("frame")
        if kind == "first_tokens":
            self._prefilled_s = time.perf_counter()
        elif kind == "commit" and receiver is not None:
            receiver.commit(frame.commit)
            self._check_complete(receiver)
        elif kind == "blocks" and receiver is not None:
            receiver.check(frame.blocks)
            self._end.fetch(frame.blocks, lambda pages: self._take(receiver, frame, pages))
        elif kind in ("refused", "abort"):
            raise Refused(str(frame))
        return bool(kind != "bye")

    def _take(
        self, receiver: Receiver, frame: handoff_pb2.PrefillFrame, pages: Pages | BadBlocks
    ) -> None:
        if isinstance(pages, BadBlocks):
            raise pages
        receiver.take(frame.blocks, pages)
        self._check_complete(receiver)

    def _check_complete(self, receiver: Receiver) -> None:
        if receiver.is_complete:
            self._complete.set()

    def _consumed(self, num_bytes: int) -> None:
        self._owed_bytes += num_bytes
        if self._owed_bytes >= CREDIT_WINDOW_BYTES // 4:
            self._credit(self._owed_bytes)
            self._owed_bytes = 0

    def _credit(self, num_bytes: int) -> None:
        self._writer.send_control(handoff_pb2.DecodeFrame(credit={"bytes": num_bytes}))


class _Call(ClientFrameStream[handoff_pb2.DecodeFrame]):
    """One handoff stream with a channel of its own."""

    def __init__(self, target: str) -> None:
        self._channel = open_channel(target)
        super().__init__(start_call(self._channel))

    async def disconnect(self) -> None:
        await self._channel.close()


class Peer:
    """The sending process and the ways to it."""

    def __init__(self, pool: Pool, transports: Transports, ports: Record) -> None:
        self.pool = pool
        self.transports = transports
        self._target = f"127.0.0.1:{ports['port']}"
        self._socket_port: int = ports.get("socket_port", 0)

    def dial(self) -> "_Call":
        """A stream that connects with its first write."""
        return _Call(self._target)

    @contextlib.asynccontextmanager
    async def link(self, **fields: Any) -> AsyncIterator[Link]:
        """A stream that uses the best transport of ours; `fields` go into our hello."""
        stream = self.dial()
        hello = handoff_pb2.DecodeHello(worker_id="bench", **fields)
        with self.transports.offer(hello) as offer:
            await stream.write(handoff_pb2.DecodeFrame(hello=hello))
            end = offer.connect((await stream.read()).hello)
        if end.name != self.transports.names[0]:
            raise TransportFailed(f"{end.name} was agreed on, not {self.transports.names[0]}")
        link = Link(stream, self.pool, end)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.run())
            yield link
            await link.close()
        await stream.disconnect()

    async def bare_stream(self) -> None:
        """All bytes as raw messages, which are not looked at."""
        async with open_channel(self._target) as channel:
            call: Any = channel.unary_stream(BARE_METHOD)
            async for _ in call(b""):
                pass

    @contextlib.contextmanager
    def plain_socket(self) -> Iterator[Callable[[], None]]:
        with socket.create_connection(("127.0.0.1", self._socket_port)) as connection:
            yield lambda: self._receive_all(connection)

    def _receive_all(self, connection: socket.socket) -> None:
        connection.send(b"\1")
        left = self.pool.blocks.memory
        while left:
            left = left[connection.recv_into(left) :]


async def measure(options: BenchOptions, report: Callable[[Record], None]) -> None:
    """Report one record about the machine, then one per transport; each has a peer of its own."""
    source = source_bytes(options.num_blocks)
    pool = Pool(options.num_blocks)
    report(_machine(options))
    for transport in options.transports:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                transports = pool.transports(with_plain(transport), folder, is_sender=False)
            except NixlMissing as error:
                report({"part": "left out", "contender": transport, "reason": str(error)})
                continue
            with running_peer(folder, options, transport) as ports:
                times = await _rounds(Peer(pool, transports, ports), options, source)
        num_bytes = options.num_blocks * SPEC.row_bytes
        report({"part": "handoff", "contender": transport, "num_bytes": num_bytes, **times})


async def _rounds(peer: "Peer", options: BenchOptions, source: bytes) -> dict[str, list[float]]:
    """Seconds by what was measured, one per round; the first round is for warming up."""
    times: dict[str, list[float]] = {}
    memory = peer.pool.blocks.memory
    with peer.plain_socket() as receive:
        async with peer.link() as link:
            for number in range(options.num_rounds + 1):
                seconds = {
                    contender: await _time(work)
                    for contender, work in _baselines(peer, source, receive).items()
                }
                memory[:] = bytes(len(memory))
                seconds["transfer"], _ = await link.transfer(options.num_blocks)
                if memory != source:
                    raise WrongBytes(link.transport)
                prefill_s = seconds["transfer"] * options.prefill_factor
                _, seconds["exposed"] = await link.transfer(options.num_blocks, prefill_s)
                for name, value in seconds.items() if number else ():
                    times.setdefault(f"{name.replace(' ', '_')}_s", []).append(value)
    return times


def with_plain(transport: str) -> tuple[str, ...]:
    """The names that a pair is to agree on."""
    return (transport,) if transport == PLAIN else (transport, PLAIN)


def _baselines(
    peer: Peer, source: bytes, receive: Callable[[], None]
) -> dict[str, Callable[[], Awaitable[None]]]:
    async def copy() -> None:
        peer.pool.blocks.memory[:] = source

    async def plain_socket() -> None:
        receive()

    return dict(zip(BASELINES, (copy, plain_socket, peer.bare_stream), strict=True))


async def _time(work: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


@contextlib.contextmanager
def running_peer(folder: Path, options: BenchOptions, transport: str) -> Iterator[Record]:
    """The sending process, until the block ends; the ports that it named when it served."""
    words = [str(folder), str(options.num_blocks), *with_plain(transport)]
    with running(_PEER, words, folder) as ports:
        yield ports


@contextlib.contextmanager
def running(module: str, words: list[str], folder: Path) -> Iterator[Record]:
    """A process, until the block ends; what it printed when it served."""
    argv = [sys.executable, "-m", module, *words]
    process = MeasuredProcess(argv, folder / f"{module}.log", dict(os.environ), is_runner=True)
    try:
        line = process.stdout.readline()
        if not line:
            raise process.failure()
        yield json.loads(line)
    finally:
        process.stop()


def run_bench(options: BenchOptions, output: Path, report: Callable[[str], None]) -> list[Record]:
    """Measure, append JSON lines to `output`, and return the records."""
    records: list[Record] = []
    output.parent.mkdir(parents=True, exist_ok=True)

    def note(record: Record) -> None:
        records.append(record)
        with output.open("a") as file:
            file.write(json.dumps(record) + "\n")

    keep_freed_memory(KEPT_BYTES)
    report(f"{options.num_rounds} rounds of {options.num_blocks} MiB")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(options, note))
    return records


def _machine(options: BenchOptions) -> Record:
    found = {package for package in _PACKAGES if _is_installed(package)}
    machine = describe_machine()
    return {
        "part": "environment",
        **machine,
        "versions": {package: metadata.version(package) for package in sorted(found)},
        "page_bytes": SPEC.layers[0].page_bytes(BLOCK_SIZE),
        "num_bytes": options.num_blocks * SPEC.row_bytes,
        "num_chunks": NUM_CHUNKS,
        "prefill_factor": options.prefill_factor,
    }


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _request(ticket: Ticket, prefill_s: float) -> handoff_pb2.Prefill:
    return handoff_pb2.Prefill(
        xfer_id=ticket.xfer_id,
        request_id=ticket.request_id,
        epoch=ticket.epoch,
        capability=ticket.capability,
        num_prompt_tokens=ticket.num_blocks * BLOCK_SIZE,
        deadline_ms=round(prefill_s * 1000),
    )
