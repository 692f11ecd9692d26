"""The worker's end of one gateway's link, over any number of connections, one at a time.

A connection that ends without Bye is lost, but the gateway is not. Its frames are kept for
RESUME_GRACE_S, and a connection that resumes the link gets what it has missed. After that time the
link is over. Knows nothing of attempts.
"""

import asyncio
from collections.abc import Callable

from baton.runtime import logs
from baton.runtime.resumable_link import NotResumable, ResumableLink
from baton.runtime.shared_stream import FrameStream, StreamLost, StreamRunner
from baton.wire import failures
from baton.wire.v1 import worker_pb2
from baton.worker import instruments
from services.decode_worker.step_merge import StepMerge

# The gateway dials again for 0.5 s; the rest is for what it takes to notice on either side.
RESUME_GRACE_S = 2.0
# Refusals and notices that wait for the writer.
MAX_NOTICES = 4096

# Gateway's id, number of its link.
LinkKey = tuple[str, int]
GatewayStream = FrameStream[worker_pb2.GatewayFrame, worker_pb2.WorkerFrame]

_log = logs.get("decode_worker.gateway_link")


class GatewayLink:
    """`serve` each connection; `wake` to write what waits in `merge`.

    `on_frame` gets each frame of the gateway once, in order. `on_change` is called when the gateway
    is back after a loss, and once when the link is over: it has left or did not come back.
    """

    def __init__(
        self,
        key: LinkKey,
        on_frame: Callable[[worker_pb2.GatewayFrame], None],
        on_change: Callable[[], None],
    ) -> None:
        self.key = key
        self.merge = StepMerge()
        self.is_over = False
        self._on_frame = on_frame
        self._on_change = on_change
        self._memory = ResumableLink(self.merge.take, worker_pb2.WorkerFrame)
        self._runner: StreamRunner[worker_pb2.WorkerFrame] | None = None
        self._disconnected = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._lacks_notice = False

    @property
    def is_disconnected(self) -> bool:
        """Its connection is lost, and it waits for the next."""
        return self._expiry is not None

    async def serve(
        self,
        stream: GatewayStream,
        hello: worker_pb2.GatewayHello,
        answer: worker_pb2.WorkerHello,
    ) -> None:
        """Serve one connection until it ends, `answer` first; take over from one that has not
        noticed its end yet. Raises Unavailable, before a word, when there is nothing to resume."""
        while self._runner is not None:
            self._disconnected.clear()
            self._runner.stop_lost()
            await self._disconnected.wait()
        try:
            if self.is_over or self._lacks_notice:
                raise NotResumable("this link has said Bye, or cannot say all")
            writer = self._memory.connect(stream, hello.num_received)
        except NotResumable as error:
            raise failures.Unavailable(str(error), reason="worker_lost") from error
        self._stop_awaiting()
        answer.num_received = self._memory.num_received
        writer.send_control(worker_pb2.WorkerFrame(hello=answer))
        self._runner = runner = StreamRunner(stream, writer, self._take)
        try:
            await runner.run()
        finally:
            self._runner = None
            self._disconnected.set()
            if runner.was_lost:
                self._await_resume()
            else:
                self._end()

    def send(self, frame: worker_pb2.WorkerFrame) -> None:
        """Write a frame that overtakes what waits in `merge`."""
        if self.merge.num_notices < MAX_NOTICES:
            self.merge.add_notice(frame)
            self._memory.wake()
            return
        self._lacks_notice = True
        if self._runner is not None:
            self._runner.stop_lost()

    def wake(self) -> None:
        """Write what waits in `merge`."""
        self._memory.wake()

    async def finish(self, reason: str) -> None:
        """Write what waits, say Bye and end the link."""
        if self._runner is not None:
            await self._runner.finish(worker_pb2.WorkerFrame(bye={"reason": reason}))
        self._end()

    def abandon(self) -> None:
        """The gateway has begun this link anew: end it without a word."""
        if self._runner is not None:
            self._runner.stop_lost()
        self._end()

    def _await_resume(self) -> None:
        if self.is_over:
            return
        _log.warning("gateway_stream_lost", gateway=self.key[0], link=self.key[1])
        self._expiry = asyncio.get_running_loop().call_later(RESUME_GRACE_S, self._on_expiry)

    def _stop_awaiting(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
            instruments.DECODE_DISCONNECTED_GATEWAYS.labels("resumed").inc()
            self._on_change()

    def _on_expiry(self) -> None:
        instruments.DECODE_DISCONNECTED_GATEWAYS.labels("expired").inc()
        self._end()

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._on_change()

    def _take(self, frame: worker_pb2.GatewayFrame) -> bool:
        """Returns False after the gateway's Bye."""
        try:
            is_new = self._memory.take(frame)
        except StreamLost:
            assert self._runner is not None, "frames come from it"
            self._runner.stop_lost()
            return True
        if frame.HasField("bye"):
            return False
        if is_new:
            self._on_frame(frame)
        return True
