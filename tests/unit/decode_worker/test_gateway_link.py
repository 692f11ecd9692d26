"""The worker's end of a gateway's link: breaks are pauses, ends come once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from baton.runtime.shared_stream import FINISH_TIMEOUT_S
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import virtual
from baton.wire.failures import Unavailable
from baton.wire.v1 import worker_pb2
from baton.worker import instruments
from services.decode_worker import gateway_link
from services.decode_worker.gateway_link import MAX_NOTICES, RESUME_GRACE_S, GatewayLink
from services.decode_worker.step_merge import StepMerge


def count(outcome: str) -> float:
    """Parked gateways with this outcome so far, as the metric has it."""
    return instruments.DECODE_DISCONNECTED_GATEWAYS.labels(outcome)._value.get()


class NumberedSteps(StepMerge):
    """Says steps one by one, as they were numbered, behind its notices."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: deque[int] = deque()

    def take(self) -> worker_pb2.WorkerFrame | None:
        if (notice := super().take()) is not None or not self.numbers:
            return notice
        return worker_pb2.WorkerFrame(step={"step": self.numbers.popleft()})


class RecordingOwner:
    """Keeps what a link tells it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.link: GatewayLink | None = None

    def on_frame(self, frame: worker_pb2.GatewayFrame) -> None:
        self.heard.append(frame.cancel.request_id)

    def on_change(self) -> None:
        assert self.link is not None
        self.heard.append("(over)" if self.link.is_over else "(resumed)")


class Connection:
    """The gateway's end of one connection, whose other end the link serves."""

    def __init__(self, link: GatewayLink, tasks: asyncio.TaskGroup, num_received: int | None):
        self.stream, theirs = memory_stream_pair()
        hello = worker_pb2.GatewayHello(gateway_id="g1", link=1)
        if num_received is not None:
            hello.num_received = num_received
        self.served = tasks.create_task(self._serve(link, theirs, hello))
        self.refusal: Unavailable | None = None

    async def _serve(
        self, link: GatewayLink, stream: MemoryStream, hello: worker_pb2.GatewayHello
    ) -> None:
        try:
            await link.serve(stream, hello, worker_pb2.WorkerHello(worker_id="w1"))
        except Unavailable as error:
            self.refusal = error

    async def read(self) -> str:
        """The next frame in one word."""
        frame = await self.stream.read()
        if frame is None:
            return "(end)"
        kind = frame.WhichOneof("frame")
        if kind == "step":
            return f"{frame.seq}: step {frame.step.step}"
        return f"{frame.seq}: {kind}"

    async def cancel(self, request_id: str, **fields: Any) -> None:
        """A frame of the gateway."""
        cancel = {"request_id": request_id}
        await self.stream.write(worker_pb2.GatewayFrame(cancel=cancel, **fields))

    async def lose(self) -> None:
        """End the connection without a bye, and wait until the link has noticed."""
        await self.stream.close()
        await self.served


class Scene:
    """One link, and its connections by the gateway."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.owner = RecordingOwner()
        self.link = GatewayLink(("g1", 1), self.owner.on_frame, self.owner.on_change)
        self.owner.link = self.link
        self._tasks = tasks

    def dial(self, num_received: int | None = None) -> Connection:
        return Connection(self.link, self._tasks, num_received)

    def say(self, *steps: int) -> None:
        assert isinstance(self.link.merge, NumberedSteps)
        self.link.merge.numbers.extend(steps)
        self.link.wake()


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_link, "StepMerge", NumberedSteps)
        async with asyncio.TaskGroup() as tasks:
            made = Scene(tasks)
            yield made
            made.link.abandon()


@virtual
async def test_the_answer_goes_first_and_notices_overtake_steps() -> None:
    async with scene() as s:
        s.say(1, 2)
        s.link.send(worker_pb2.WorkerFrame(go_away={}))
        gateway = s.dial()
        assert [await gateway.read() for _ in range(4)] == [
            *("0: hello", "1: go_away", "2: step 1", "3: step 2")
        ]


@virtual
async def test_a_frame_is_taken_in_once_and_the_answer_tells_how_many_were() -> None:
    async with scene() as s:
        first = s.dial()
        await first.cancel("a", seq=1)
        await first.cancel("b", seq=2)
        await first.lose()
        second = s.dial(num_received=0)
        assert (await second.stream.read()).hello.num_received == 2
        await second.cancel("b", seq=2)
        await second.cancel("c", seq=3)
        await second.lose()
        assert s.owner.heard == ["a", "b", "(resumed)", "c"]


@virtual
async def test_a_connection_on_which_a_frame_is_missing_is_lost() -> None:
    async with scene() as s:
        gateway = s.dial()
        await gateway.cancel("a", seq=1)
        await gateway.cancel("c", seq=3)
        await gateway.served
        assert s.owner.heard == ["a"]
        assert s.link.is_disconnected


@virtual
async def test_what_was_not_acknowledged_is_written_again_on_the_next_connection() -> None:
    async with scene() as s:
        s.say(1, 2, 3)
        first = s.dial()
        assert [await first.read() for _ in range(4)][-1] == "3: step 3"
        await first.lose()
        s.say(4)
        second = s.dial(num_received=1)
        assert [await second.read() for _ in range(4)] == [
            *("0: hello", "2: step 2", "3: step 3", "4: step 4")
        ]


@virtual
async def test_a_gateway_that_comes_back_in_time_finds_everything() -> None:
    async with scene() as s:
        num_resumed, num_expired = count("resumed"), count("expired")
        await s.dial().lose()
        await asyncio.sleep(RESUME_GRACE_S - 0.001)
        assert s.link.is_disconnected
        back = s.dial(num_received=0)
        assert await back.read() == "0: hello"
        await asyncio.sleep(2 * RESUME_GRACE_S)
        assert not s.link.is_disconnected
        assert s.owner.heard == ["(resumed)"]
        assert (count("resumed"), count("expired")) == (num_resumed + 1, num_expired)


@virtual
async def test_a_gateway_that_does_not_come_back_is_over_once_after_its_time() -> None:
    async with scene() as s:
        num_expired = count("expired")
        await s.dial().lose()
        await asyncio.sleep(RESUME_GRACE_S + 0.001)
        assert s.owner.heard == ["(over)"]
        assert count("expired") == num_expired + 1
        late = s.dial(num_received=0)
        await late.served
        assert late.refusal is not None
        assert late.refusal.reason == "worker_lost"
        assert late.stream.num_written == 0
        await s.link.finish("draining")
        assert s.owner.heard == ["(over)"]


@pytest.mark.parametrize("num_received", [0, 1, 4])
@virtual
async def test_frames_that_are_not_kept_cannot_be_resumed_after(num_received: int) -> None:
    """Two were acknowledged, and three were written."""
    async with scene() as s:
        s.say(1, 2, 3)
        first = s.dial()
        assert [await first.read() for _ in range(4)][-1] == "3: step 3"
        await first.cancel("a", ack=2)
        await first.lose()
        again = s.dial(num_received=num_received)
        await again.served
        assert again.refusal is not None
        assert await s.dial(num_received=3).read() == "0: hello"


@virtual
async def test_a_connection_takes_over_from_one_whose_loss_was_not_noticed() -> None:
    async with scene() as s:
        half_open = s.dial()
        assert await half_open.read() == "0: hello"
        s.say(1)
        assert await half_open.read() == "1: step 1"
        taking_over = s.dial(num_received=0)
        assert [await taking_over.read() for _ in range(2)] == ["0: hello", "1: step 1"]
        await half_open.served
        assert await half_open.read() == "(end)"
        assert s.owner.heard == ["(resumed)"]


@virtual
async def test_a_bye_of_the_gateway_ends_the_link_at_once() -> None:
    async with scene() as s:
        gateway = s.dial()
        await gateway.stream.write(worker_pb2.GatewayFrame(bye={}))
        await gateway.served
        assert s.owner.heard == ["(over)"]
        assert not s.link.is_disconnected
        again = s.dial(num_received=0)
        await again.served
        assert again.refusal is not None


@virtual
async def test_a_finish_says_what_waits_and_then_bye() -> None:
    async with scene() as s:
        gateway = s.dial()
        assert await gateway.read() == "0: hello"
        s.say(1, 2)
        finishing = asyncio.ensure_future(s.link.finish("draining"))
        assert [await gateway.read() for _ in range(3)] == ["1: step 1", "2: step 2", "0: bye"]
        await gateway.stream.close()
        await finishing
        assert s.owner.heard == ["(over)"]


@virtual
async def test_a_gateway_that_reads_nothing_delays_a_finish_by_one_second() -> None:
    """More steps wait than the connection holds, so that the Bye is not written."""
    async with scene() as s:
        gateway = s.dial()
        assert await gateway.read() == "0: hello"
        s.say(*range(1, 200))
        await s.link.finish("draining")
        assert asyncio.get_running_loop().time() == FINISH_TIMEOUT_S == 1.0
        assert s.owner.heard == ["(over)"]
        await gateway.served
        frames = []
        while (frame := await gateway.read()) != "(end)":
            frames.append(frame)
        assert frames[-1] == "64: step 64"


@virtual
async def test_a_finish_ends_a_link_that_waits_for_its_gateway() -> None:
    async with scene() as s:
        await s.dial().lose()
        await s.link.finish("draining")
        assert s.owner.heard == ["(over)"]
        num_expired = count("expired")
        await asyncio.sleep(2 * RESUME_GRACE_S)
        assert s.owner.heard == ["(over)"]
        assert count("expired") == num_expired


@virtual
async def test_a_link_that_begins_anew_ends_the_old_one_without_a_word() -> None:
    async with scene() as s:
        gateway = s.dial()
        assert await gateway.read() == "0: hello"
        s.link.abandon()
        assert s.owner.heard == ["(over)"]
        await gateway.served
        assert await gateway.read() == "(end)"
        assert not s.link.is_disconnected
        assert s.owner.heard == ["(over)"]


@virtual
async def test_a_link_that_cannot_keep_a_notice_is_lost_and_not_resumed() -> None:
    async with scene() as s:
        gateway = s.dial()
        assert await gateway.read() == "0: hello"
        for _ in range(MAX_NOTICES + 1):
            s.link.send(worker_pb2.WorkerFrame(go_away={}))
        await gateway.served
        again = s.dial(num_received=0)
        await again.served
        assert again.refusal is not None
        await asyncio.sleep(RESUME_GRACE_S + 0.001)
        assert s.owner.heard == ["(over)"]
