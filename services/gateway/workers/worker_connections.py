"""The connections of one link to a decode worker, one after the other: the first, and each that
resumes where a lost one broke. Knows nothing of attempts, and of frames only the hellos."""

import asyncio
import math
from contextlib import AsyncExitStack

from baton.runtime.resumable_link import NotResumable, ResumableLink
from baton.runtime.shared_stream import FrameWriter, StreamLost
from baton.system.clock import Clock
from baton.wire.failures import Unavailable
from baton.wire.protocol import agree
from baton.wire.v1 import worker_pb2
from services.gateway import instruments
from services.gateway.clients.protocols import Dial, WorkerStream

HELLO_TIMEOUT_S = 5.0
# How long a lost connection is dialled again; the worker waits for longer (its RESUME_GRACE_S).
RESUME_WINDOW_S = 0.5
REDIAL_PAUSE_S = 0.02

Writer = FrameWriter[worker_pb2.GatewayFrame]
Memory = ResumableLink[worker_pb2.GatewayFrame]


class WorkerConnections:
    """Makes the connections of one link: call `first`, then `resume` after each `lost`."""

    def __init__(
        self, endpoint: str, hello: worker_pb2.GatewayHello, memory: Memory, clock: Clock
    ) -> None:
        # The first one; every later hello must be of the same life of the worker.
        self.worker_hello: worker_pb2.WorkerHello | None = None
        self._endpoint = endpoint
        self._hello = hello
        self._memory = memory
        self._clock = clock
        self._give_up_s = -math.inf
        self._num_received = 0

    async def first(self, dial: Dial) -> tuple[WorkerStream, Writer]:
        """Dial, and once more if that connection is cut at once. There is no longer wait: a request
        for a worker that is away should soon try another one.

        Raises StreamLost, TimeoutError; a BatonError when the worker will not or cannot serve.
        """
        try:
            return await self._connect(dial)
        except StreamLost:
            return await self._connect(dial)

    def lost(self) -> None:
        """Note that the connection has ended, and give the next one RESUME_WINDOW_S from now on.

        A connection that brought nothing gives no new time: connections that break at once must not
        put off the link's end for ever.
        """
        lost_s = self._clock.now()
        if self._memory.num_received > self._num_received or lost_s > self._give_up_s:
            self._give_up_s = lost_s + RESUME_WINDOW_S
        self._num_received = self._memory.num_received

    async def resume(self, dial: Dial) -> tuple[WorkerStream, Writer]:
        """Make the next connection. Raises as `first` does, TimeoutError after the window."""
        outcome = instruments.StreamOutcome.GIVEN_UP
        try:
            async with asyncio.timeout(self._give_up_s - self._clock.now()):
                while True:
                    try:
                        connection = await self._connect(dial)
                        outcome = instruments.StreamOutcome.RESUMED
                        return connection
                    except StreamLost:
                        await asyncio.sleep(REDIAL_PAUSE_S)
        finally:
            instruments.GATEWAY_LOST_STREAMS.labels(outcome).inc()

    async def _connect(self, dial: Dial) -> tuple[WorkerStream, Writer]:
        stream = await dial(self._endpoint)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(stream.close)
            try:
                writer = self._memory.connect(stream, await self._greet(stream))
            except NotResumable:
                message = "the worker lacks frames that were acknowledged"
                raise Unavailable(message, reason="worker_lost") from None
            undo.pop_all()
        return stream, writer

    async def _greet(self, stream: WorkerStream) -> int:
        """Exchange hellos; returns the number of our frames that the worker took in."""
        before = self.worker_hello
        if before is not None:
            self._hello.num_received = self._memory.num_received
        await stream.write(worker_pb2.GatewayFrame(hello=self._hello))
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            frame = await stream.read()
        if frame is None or not frame.HasField("hello"):
            raise StreamLost("no hello")
        hello = frame.hello
        agree(hello.protocol, peer=hello.worker_id, own=self._hello.gateway_id)
        if before is None:
            self.worker_hello = hello
        elif hello.boot_epoch != before.boot_epoch or not hello.HasField("num_received"):
            raise Unavailable("the worker has begun anew", reason="worker_lost")
        return int(hello.num_received)
