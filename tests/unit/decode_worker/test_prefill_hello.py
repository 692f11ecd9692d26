"""The hellos of a handoff stream, from the side that dials."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from baton.handoff.negotiation import Transports
from baton.handoff.transport import TransportFailed
from baton.handoff.transports.grpc_stream import GrpcReceiver, GrpcTransport
from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, virtual
from baton.wire import failures
from baton.wire.kv_spec import KVSpec, to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import handoff_pb2, router_pb2
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from services.decode_worker.prefill_hello import CONNECT_TIMEOUT_S, Connection, connect
from tests.unit.worker.scripted_core import BLOCK_SIZE, MODEL_FP, SPEC, ScriptedCore, scripted_parts

OTHER_SPEC = KVSpec.of_layers(BLOCK_SIZE, [(1, 4, 2, "float32")] * 3)
Change = Callable[[handoff_pb2.PrefillHello], object]


class BrokenTransport(GrpcTransport):
    """Is offered and taken up, and then cannot be set up."""

    name = "broken"

    def connect(self, answer: handoff_pb2.PrefillHello) -> GrpcReceiver:
        raise TransportFailed("no such memory")


class PrefillWorker:
    """Answers each hello with the first transport offered, as `change` alters the answer."""

    def __init__(self, change: Change = lambda hello: None) -> None:
        self.hellos: list[handoff_pb2.DecodeHello] = []
        self.ends: list[MemoryStream] = []
        self.change = change
        self._answering: list[asyncio.Task[None]] = []

    async def dial(self, endpoint: str) -> MemoryStream:
        assert endpoint == "prefill:1"
        ours, theirs = memory_stream_pair()
        self.ends.append(theirs)
        self._answering.append(asyncio.ensure_future(self._answer(theirs)))
        return ours

    async def _answer(self, stream: MemoryStream) -> None:
        hello = (await stream.read()).hello
        self.hellos.append(hello)
        answer = handoff_pb2.PrefillHello(
            protocol=PROTOCOL_VERSION,
            worker_id="p1",
            model_fp=MODEL_FP,
            kv_spec=to_wire(SPEC),
            transport=hello.transports[0],
        )
        if self.change(answer) is not SILENT:
            await stream.write(handoff_pb2.PrefillFrame(hello=answer))

    async def has_closed(self, index: int) -> bool:
        """The dialling side has ended its connection of this number."""
        return await self.ends[index].read() is None


SILENT = object()


def make_parts(*, breaks: bool = False) -> WorkerDeps:
    deps = scripted_parts(ScriptedCore(), VirtualClock(), router_pb2.WORKER_ROLE_DECODE, "d1")
    plain = GrpcTransport(deps.blocks)
    transports = [BrokenTransport(deps.blocks), plain] if breaks else [plain]
    return replace(deps, boot_epoch=77, transports=Transports(transports))


async def connected(
    peer: PrefillWorker, *, breaks: bool = False, only_plain: bool = False
) -> Connection:
    deps = make_parts(breaks=breaks)
    return await connect(peer.dial, "prefill:1", deps, credit_bytes=1234, only_plain=only_plain)


@virtual
async def test_the_hello_tells_what_works_here_and_the_connection_what_was_agreed() -> None:
    peer = PrefillWorker()
    num_links = instruments.HANDOFF_LINKS.labels("grpc")._value.get()

    connection = await connected(peer)

    (hello,) = peer.hellos
    assert (hello.protocol, hello.worker_id, hello.boot_epoch) == (PROTOCOL_VERSION, "d1", 77)
    assert (hello.model_fp, hello.kv_spec, hello.tp_size) == (MODEL_FP, to_wire(SPEC), 1)
    assert (list(hello.transports), hello.credit_bytes) == (["grpc"], 1234)
    assert connection.end.name == "grpc"
    await connection.stream.write(handoff_pb2.DecodeFrame(credit={"bytes": 5}))
    assert (await peer.ends[0].read()).credit.bytes == 5
    assert instruments.HANDOFF_LINKS.labels("grpc")._value.get() == num_links + 1


@virtual
async def test_the_connection_knows_the_zone_of_its_peer() -> None:
    peer = PrefillWorker(lambda hello: setattr(hello, "zone", "b"))
    assert (await connected(peer)).zone == "b"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (
            lambda hello: setattr(hello, "model_fp", "other"),
            f"model_fp other of p1 != {MODEL_FP} here",
        ),
        (
            lambda hello: hello.kv_spec.CopyFrom(to_wire(OTHER_SPEC)),
            "kv_spec of p1: row_bytes 288 != 192 here",
        ),
        (lambda hello: setattr(hello, "protocol", 0), "protocol 0 of p1 is older"),
        (lambda hello: setattr(hello, "transport", "smoke"), "'smoke' of p1 is none of grpc"),
    ],
)
@virtual
async def test_a_peer_that_differs_is_incompatible_and_the_difference_named(
    change: Change, cause: str
) -> None:
    peer = PrefillWorker(change)
    with pytest.raises(failures.Incompatible, match=cause):
        await connected(peer)
    assert await peer.has_closed(0)
    assert len(peer.ends) == 1


@virtual
async def test_a_refusal_of_the_peer_is_passed_on() -> None:
    overloaded = failures.to_wire(failures.Overloaded("256 decode workers are connected already"))
    peer = PrefillWorker(lambda hello: hello.failure.CopyFrom(overloaded))
    with pytest.raises(failures.Unavailable, match="256 decode workers") as raised:
        await connected(peer)
    assert raised.value.reason == "overloaded"
    assert await peer.has_closed(0)


@virtual
async def test_a_peer_that_says_something_else_first_is_lost() -> None:
    peer = PrefillWorker()

    async def dial(endpoint: str) -> MemoryStream:
        ours, theirs = memory_stream_pair()
        peer.ends.append(theirs)
        await theirs.write(handoff_pb2.PrefillFrame(bye={}))
        return ours

    with pytest.raises(StreamLost, match="no hello"):
        await connect(dial, "prefill:1", make_parts(), credit_bytes=1)
    assert (await peer.ends[0].read()).HasField("hello")
    assert await peer.has_closed(0)


@virtual
async def test_a_peer_that_says_nothing_is_given_up_after_a_while() -> None:
    peer = PrefillWorker(lambda hello: SILENT)
    loop = asyncio.get_running_loop()
    with pytest.raises(StreamLost, match="no hello within"):
        await connected(peer)
    assert loop.time() == pytest.approx(CONNECT_TIMEOUT_S)
    assert await peer.has_closed(0)


@virtual
async def test_an_endpoint_that_nobody_listens_on_is_lost() -> None:
    async def dial(endpoint: str) -> MemoryStream:
        raise StreamLost("connection refused")

    with pytest.raises(StreamLost, match="refused"):
        await connect(dial, "prefill:1", make_parts(), credit_bytes=1)


@virtual
async def test_a_transport_that_cannot_be_set_up_costs_a_second_dial_for_the_plain_one() -> None:
    peer = PrefillWorker()
    num_fallbacks = instruments.HANDOFF_FALLBACKS.labels("broken")._value.get()

    connection = await connected(peer, breaks=True)

    assert [list(hello.transports) for hello in peer.hellos] == [["broken", "grpc"], ["grpc"]]
    assert [hello.credit_bytes for hello in peer.hellos] == [1234, 1234]
    assert connection.end.name == "grpc"
    assert await peer.has_closed(0)
    assert instruments.HANDOFF_FALLBACKS.labels("broken")._value.get() == num_fallbacks + 1


@virtual
async def test_a_peer_that_is_not_trusted_is_offered_the_plain_transport_alone() -> None:
    peer = PrefillWorker()
    await connected(peer, breaks=True, only_plain=True)
    assert [list(hello.transports) for hello in peer.hellos] == [["grpc"]]
