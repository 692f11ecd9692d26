import asyncio

import grpc
import pytest

from baton.runtime.shared_stream import (
    WRITE_TIMEOUT_S,
    ClientFrameStream,
    FrameWriter,
    StreamLost,
)
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.virtual_clock import run_virtual


async def read_all(stream, count: int) -> list:
    return [await stream.read() for _ in range(count)]


def test_control_frames_overtake_queued_ones_and_drain_comes_last() -> None:
    async def scenario() -> list:
        ours, theirs = memory_stream_pair()
        merged = ["merged"]
        writer = FrameWriter(ours, drain=lambda: merged.pop() if merged else None)
        writer.send("queued")
        writer.send_control("control")
        task = asyncio.create_task(writer.run())
        frames = await read_all(theirs, 3)
        task.cancel()
        return frames

    assert run_virtual(scenario()) == ["control", "queued", "merged"]


def test_what_queues_up_while_a_write_is_in_flight_is_merged() -> None:
    async def scenario() -> list:
        ours, theirs = memory_stream_pair(max_frames=1)
        pending: list[int] = []

        def drain() -> list[int] | None:
            nonlocal pending
            batch, pending = pending, []
            return batch or None

        writer = FrameWriter(ours, drain=drain)
        task = asyncio.create_task(writer.run())
        frames = []
        for token in range(100):
            pending.append(token)
            writer.wake()
            await asyncio.sleep(0)
        while sum(map(len, frames)) < 100:
            frames.append(await theirs.read())
        task.cancel()
        return frames

    frames = run_virtual(scenario())
    assert [token for frame in frames for token in frame] == list(range(100))
    assert len(frames) < 10


def test_a_full_queue_is_a_lost_stream() -> None:
    async def scenario() -> None:
        ours, _ = memory_stream_pair()
        writer = FrameWriter(ours, max_queued=2)
        writer.send(1)
        writer.send(2)
        with pytest.raises(StreamLost):
            writer.send(3)

    run_virtual(scenario())


def test_flush_waits_for_everything_queued_and_returns_on_loss() -> None:
    async def scenario() -> None:
        ours, theirs = memory_stream_pair()
        writer = FrameWriter(ours)
        writer.send("bye")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(writer.run())
            await writer.flush()
            assert ours.num_written == 1
            task.cancel()
        ours.cancel()
        assert await theirs.read() is None
        with pytest.raises(StreamLost):
            writer.send("more")
        await writer.flush()

    run_virtual(scenario())


async def test_a_call_that_failed_a_moment_ago_can_be_closed() -> None:
    class FailingCall:
        async def done_writing(self) -> None:
            raise grpc.aio.InternalError("the call is over, and its status on its way")

    await ClientFrameStream(FailingCall()).close()


class BlockedCall:
    """A call whose peer reads nothing any more, after its first message."""

    def __init__(self) -> None:
        self.num_written = 0

    async def write(self, frame: object) -> None:
        self.num_written += 1
        if self.num_written > 1:
            await asyncio.Event().wait()


def test_a_blocked_write_loses_the_stream_after_its_time() -> None:
    async def scenario() -> None:
        loop, stream = asyncio.get_running_loop(), ClientFrameStream(BlockedCall())
        await stream.write("first")
        await asyncio.sleep(0.6 * WRITE_TIMEOUT_S)
        began_s = loop.time()
        with pytest.raises(StreamLost, match="blocked"):
            await stream.write("second")
        # The timer of the first write passed in between.
        assert loop.time() - began_s == pytest.approx(1.4 * WRITE_TIMEOUT_S)
        assert not asyncio.current_task().cancelling()

    run_virtual(scenario())


def test_a_blocked_write_can_be_cancelled() -> None:
    async def scenario() -> None:
        stream = ClientFrameStream(BlockedCall())
        await stream.write("first")
        writing = asyncio.create_task(stream.write("second"))
        await asyncio.sleep(0.5 * WRITE_TIMEOUT_S)
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()

    run_virtual(scenario())


class RefusedCall:
    """A call that ended with a status before its first message."""

    def __init__(self, status: grpc.StatusCode) -> None:
        nothing = grpc.aio.Metadata()
        self._error = grpc.aio.AioRpcError(status, nothing, nothing, details="protocol 1 is old")

    async def read(self) -> object:
        raise self._error

    async def write(self, frame: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("status", "is_told"),
    [(grpc.StatusCode.FAILED_PRECONDITION, True), (grpc.StatusCode.UNAVAILABLE, False)],
)
async def test_a_peer_that_refuses_the_stream_is_told_in_the_log_and_one_that_is_away_is_not(
    status: grpc.StatusCode, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stream = ClientFrameStream(RefusedCall(status))
    assert await stream.read() is None
    with pytest.raises(StreamLost):
        await stream.write(None)
    told = [record.baton_fields["reason"] for record in caplog.records]
    assert told == ["protocol 1 is old"] * 2 * is_told
