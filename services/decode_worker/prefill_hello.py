"""The hellos of a handoff stream, from the side that dials: same model, same KV, which transport.

A transport that the peer took up and that then cannot be set up costs a second dial, for the plain
one. Knows nothing of transfers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from baton.handoff.transport import ReceivingEnd, TransportFailed
from baton.runtime import logs
from baton.runtime.shared_stream import FrameStream, StreamLost
from baton.wire import failures
from baton.wire.limits import MAX_ZONE_CHARS
from baton.wire.v1 import handoff_pb2
from baton.worker import instruments
from baton.worker.deps import WorkerDeps
from baton.worker.handoff_hello import check_hello, make_hello

CONNECT_TIMEOUT_S = 2.0

HandoffStream = FrameStream[handoff_pb2.PrefillFrame, handoff_pb2.DecodeFrame]
Dial = Callable[[str], Awaitable[HandoffStream]]

_log = logs.get("decode_worker.prefill_hello")


@dataclass(frozen=True, slots=True)
class Connection:
    """A stream whose peer has agreed to work with us, how its pages get here, and where it runs."""

    stream: HandoffStream
    end: ReceivingEnd
    zone: str


async def connect(
    dial: Dial, endpoint: str, deps: WorkerDeps, *, credit_bytes: int, only_plain: bool = False
) -> Connection:
    """Dial and exchange hellos; the peer may then have `credit_bytes` of blocks on the way.

    Raises StreamLost or BatonError; nothing is left open then.
    """
    hello = _hello(deps, credit_bytes)
    try:
        connection = await _connect(dial, endpoint, deps, hello, only_plain)
    except TransportFailed as error:
        _log.warning("transport_failed", endpoint=endpoint, detail=str(error))
        connection = await _connect(dial, endpoint, deps, _hello(deps, credit_bytes), True)
    instruments.HANDOFF_LINKS.labels(connection.end.name).inc()
    return connection


async def _connect(
    dial: Dial,
    endpoint: str,
    deps: WorkerDeps,
    hello: handoff_pb2.DecodeHello,
    only_plain: bool,
) -> Connection:
    stream = await dial(endpoint)
    try:
        with deps.transports.offer(hello, only_plain=only_plain) as offer:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await stream.write(handoff_pb2.DecodeFrame(hello=hello))
                answer = _check(await stream.read(), deps)
            try:
                return Connection(stream, offer.connect(answer), answer.zone[:MAX_ZONE_CHARS])
            except TransportFailed:
                instruments.HANDOFF_FALLBACKS.labels(answer.transport).inc()
                raise
    except TimeoutError as error:
        await stream.close()
        raise StreamLost(f"no hello within {CONNECT_TIMEOUT_S} s") from error
    except (StreamLost, failures.BatonError, TransportFailed):
        await stream.close()
        raise


def _hello(deps: WorkerDeps, credit_bytes: int) -> handoff_pb2.DecodeHello:
    hello = make_hello(handoff_pb2.DecodeHello, deps)
    hello.credit_bytes = credit_bytes
    return hello


def _check(answer: handoff_pb2.PrefillFrame | None, deps: WorkerDeps) -> handoff_pb2.PrefillHello:
    """The peer's hello. Raises StreamLost, and BatonError naming what differs."""
    if answer is None or answer.WhichOneof("frame") != "hello":
        raise StreamLost("no hello")
    if answer.hello.HasField("failure"):
        raise failures.from_wire(answer.hello.failure)
    check_hello(answer.hello, deps)
    return answer.hello
