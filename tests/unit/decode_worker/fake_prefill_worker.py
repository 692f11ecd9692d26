"""A prefill worker that does what a test says, and one handoff to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from baton.engine.protocol.messages import SamplingParams
from baton.handoff.frame_codec import serialize
from baton.handoff.sender import Sender
from baton.handoff.ticket import Ticket
from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.wire import failures
from baton.wire.kv_spec import to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import failure_pb2, handoff_pb2, router_pb2, worker_pb2
from baton.worker.deps import WorkerDeps
from services.decode_worker.attempt_output import AttemptOutput
from services.decode_worker.attempt_request import AttemptRequest
from services.decode_worker.gateway_link import GatewayLink
from services.decode_worker.prefill_links import PrefillLinks
from services.decode_worker.remote_prefill import Prefilled, RemotePrefill
from tests.unit.worker.scripted_core import make_worker, turns

ENDPOINT = "prefill:1"
# Two full blocks and a part of a third.
NUM_TOKENS = 10
# Where the decode worker's blocks are, and the prefill worker's.
BOUND = [5, 6, 7]
COMPUTED = [1, 2, 3]
FILL = 0xA5


class FakePrefillWorker:
    """Answers hellos as a real one; its pool is filled with FILL."""

    def __init__(self) -> None:
        _, self.deps = make_worker("prefill-1", router_pb2.WORKER_ROLE_PREFILL)
        self.frames: list[handoff_pb2.DecodeFrame] = []
        self.num_dials = 0
        self.is_reachable = True
        self._arrived = asyncio.Event()
        self._stream: MemoryStream
        self._sending: Any
        pool = self.deps.dispatcher.pool
        pool[:] = bytes([FILL]) * len(pool)

    async def dial(self, endpoint: str) -> MemoryStream:
        if not self.is_reachable:
            raise StreamLost("connection refused")
        self.num_dials += 1
        ours, self._stream = memory_stream_pair()
        asyncio.get_running_loop().create_task(self._read(self._stream))
        return ours

    def kinds(self) -> list[str]:
        """What the decode worker said after its hellos, renewals left out."""
        kinds = [str(frame.WhichOneof("frame")) for frame in self.frames]
        return [kind for kind in kinds if kind not in ("hello", "renew", "bye")]

    async def next(self, kind: str, number: int = 1) -> Any:
        """The `number`-th message of a kind."""
        while True:
            found = [getattr(f, kind) for f in self.frames if f.WhichOneof("frame") == kind]
            if len(found) >= number:
                return found[number - 1]
            self._arrived.clear()
            await self._arrived.wait()

    async def say(self, **frame: Any) -> None:
        await self._stream.write(handoff_pb2.PrefillFrame(**frame))

    async def accept(self, request: handoff_pb2.Prefill) -> None:
        await self.say(accepted={"xfer_id": request.xfer_id})

    async def tell_first(self, request: handoff_pb2.Prefill, **fields: Any) -> None:
        first = {"xfer_id": request.xfer_id, "token_id": 7, "num_cached_tokens": 4, **fields}
        await self.say(first_tokens=first)

    async def send_blocks(
        self, request: handoff_pb2.Prefill, spoil: Callable[[Any], None] = lambda frame: None
    ) -> None:
        """All blocks and the commit; `spoil` may change each Blocks frame."""
        spec = self.deps.blocks.spec
        ticket = Ticket(
            request.xfer_id,
            request.request_id,
            request.epoch,
            request.capability,
            request.first_missing_block,
            spec.num_blocks_for(request.num_prompt_tokens),
        )
        rows = COMPUTED[ticket.first_missing_block :]
        sender = Sender(ticket, rows, self.deps.blocks, self._sending)
        sender.finish()
        while sender.has_next():
            frame = handoff_pb2.PrefillFrame.FromString(serialize(sender.next_frame()))
            if frame.HasField("blocks"):
                spoil(frame)
            await self._stream.write(frame)

    def cut(self) -> None:
        self._stream.cancel()

    async def _read(self, stream: MemoryStream) -> None:
        while (frame := await stream.read()) is not None:
            self.frames.append(frame)
            if frame.HasField("hello"):
                await self._answer(frame.hello, stream)
            self._arrived.set()

    async def _answer(self, hello: handoff_pb2.DecodeHello, stream: MemoryStream) -> None:
        answer = handoff_pb2.PrefillHello(
            protocol=PROTOCOL_VERSION,
            worker_id="prefill-1",
            model_fp=self.deps.dispatcher.info.model_fp,
            kv_spec=to_wire(self.deps.blocks.spec),
            tp_size=1,
        )
        self._sending = self.deps.transports.accept(hello, answer)
        await stream.write(handoff_pb2.PrefillFrame(hello=answer))


class Handoff:
    """One RemotePrefill and what came of it. The test sets `bound`."""

    def __init__(self, deps: WorkerDeps, links: PrefillLinks, peer: FakePrefillWorker) -> None:
        submit = worker_pb2.Submit(
            request_id="r1",
            epoch=1,
            handle=1,
            prefill_endpoint=ENDPOINT,
            cache_key=b"k" * 32,
            sampling={"num_choices": 1, "max_tokens": 8},
        )
        request = AttemptRequest(submit, bytes(4 * NUM_TOKENS), b"", SamplingParams(8), None)
        link = GatewayLink(("gateway-1", 1), lambda frame: None, lambda: None)
        output = AttemptOutput(request, link, deps)
        self.deps = deps
        self.links = links
        self.peer = peer
        self.prefill = RemotePrefill(output, 0, [], deps, links)
        self.num_binds = 0
        self.bound: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.told: list[tuple[handoff_pb2.FirstTokens, int]] = []
        self.result: Prefilled | failures.BatonError | None = None
        self.over = asyncio.Event()

    def start(self, num_cached_blocks: int = 0) -> None:
        self.prefill.start(self._run(num_cached_blocks))

    def pool_block(self, block_id: int) -> bytes:
        row_bytes = self.deps.blocks.spec.row_bytes
        return bytes(self.deps.dispatcher.pool[block_id * row_bytes :][:row_bytes])

    async def _run(self, num_cached_blocks: int) -> None:
        try:
            self.result = await self.prefill.run(
                num_cached_blocks, self._bind, lambda *first: self.told.append(first)
            )
        except failures.BatonError as error:
            self.result = error
        finally:
            self.over.set()

    def _bind(self, is_on_device: bool) -> None:
        self.num_binds += 1
        self.bound.add_done_callback(lambda bound: self.prefill.take_rows(bound.result()))


@asynccontextmanager
async def handoff() -> AsyncIterator[Handoff]:
    """On a virtual loop. At the end nothing may be open."""
    _, deps = make_worker("decode-1", router_pb2.WORKER_ROLE_DECODE)
    peer = FakePrefillWorker()
    links = PrefillLinks(deps, peer.dial)
    running = asyncio.create_task(links.run())
    await turns()
    yield Handoff(deps, links, peer)
    assert links.num_transfers == 0
    await links.close("over")
    running.cancel()
    await asyncio.wait([running])


def failure(reason: str) -> failure_pb2.Failure:
    return failure_pb2.Failure(reason=reason, message="as the test wants it")


Scenario = Callable[[Handoff], Awaitable[None]]
