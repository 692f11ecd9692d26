"""Long calls and answers travel in parts, between which others go."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from baton.runtime.calls import parts
from baton.runtime.calls.call_server import FRAME_BYTES, CallServer, IncomingCall
from baton.runtime.calls.call_stream import Unanswered
from baton.runtime.calls.parts import PART_BYTES
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.call_methods import RESERVE
from baton.wire.failures import DeadlineExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2

LONG = "abcdefg" * PART_BYTES
MAX_FRAME_BYTES = FRAME_BYTES + PART_BYTES + 1024


class CallerEnd(MemoryStream):
    """The caller's end of a stream; notes the bytes of each frame."""

    failure = Unanswered("cut")
    # False: neither end knows of parts, as before there were any.
    knows_parts = True
    frames: list[int]

    async def read(self) -> Any:
        frame = await super().read()
        return frame if frame is None else self._noted(frame)

    async def write(self, frame: Any) -> None:
        await super().write(self._noted(frame))
        # The transport takes one frame in a turn of the loop.
        await asyncio.sleep(0)

    def _noted(self, frame: Any) -> Any:
        self.frames.append(frame.ByteSize())
        frame.takes_parts &= self.knows_parts
        return frame


class Echo:
    """Sends back what it is sent, and notes in which order."""

    def __init__(self, clock: VirtualClock, *, knows_parts: bool = True) -> None:
        self.near, far = memory_stream_pair()
        self.near.__class__ = CallerEnd
        self.near.knows_parts, self.near.frames = knows_parts, []
        self.calls = SharedCalls(lambda: self.near, clock, is_balanced=False)
        self.heard: list[str] = []
        server = CallServer({RESERVE: self._reserve})
        self.serving = asyncio.create_task(server.serve(far))

    async def _reserve(
        self, request: quota_pb2.ReserveRequest, call: IncomingCall
    ) -> quota_pb2.ReserveResponse:
        self.heard.append(request.key_id)
        return quota_pb2.ReserveResponse(
            limits=failure_pb2.LimitState(requests_scope=request.tenant)
        )

    async def say(self, key_id: str, text: str, deadline_s: float = 60.0) -> str:
        request = quota_pb2.ReserveRequest(key_id=key_id, tenant=text)
        answer = await self.calls.call(RESERVE, request, CallTerms(deadline_s))
        return answer.limits.requests_scope


def with_echo(scenario: Callable[[Echo], Awaitable[None]], *, knows_parts: bool = True) -> None:
    clock = VirtualClock()

    async def main() -> None:
        echo = Echo(clock, knows_parts=knows_parts)
        # The peers have greeted each other.
        assert await echo.say("greeting", "hello") == "hello"
        await scenario(echo)
        await echo.calls.close()
        echo.serving.cancel()
        await asyncio.wait([echo.serving])

    run_virtual(main(), clock)


def test_a_long_call_and_its_answer_are_cut_and_others_overtake_them() -> None:
    async def scenario(echo: Echo) -> None:
        texts = [LONG, "short", LONG.upper()]
        said = [asyncio.create_task(echo.say(text[:5], text)) for text in texts]
        assert await asyncio.gather(*said) == texts
        assert echo.heard[1] == "short"
        assert max(echo.near.frames) <= MAX_FRAME_BYTES

    with_echo(scenario)


def test_a_peer_that_does_not_know_parts_gets_whole_messages() -> None:
    async def scenario(echo: Echo) -> None:
        assert await echo.say("long", LONG) == LONG
        assert sum(size > len(LONG) for size in echo.near.frames) == 2

    with_echo(scenario, knows_parts=False)


@pytest.mark.parametrize("num_frames", [1, 5, 9])
def test_a_long_call_whose_caller_leaves_disturbs_no_other(num_frames: int) -> None:
    async def scenario(echo: Echo) -> None:
        before = len(echo.near.frames)
        leaving = asyncio.create_task(echo.say("left", LONG))
        while len(echo.near.frames) < before + num_frames:
            await asyncio.sleep(0)
        leaving.cancel()
        assert await echo.say("long", LONG) == LONG
        with pytest.raises(DeadlineExceeded):
            await echo.say("late", LONG, deadline_s=0.0)
        assert await echo.say("short", "short") == "short"

    with_echo(scenario)


def test_a_message_without_an_end_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_PARTS", 3)

    async def scenario(echo: Echo) -> None:
        with pytest.raises(Unavailable):
            await echo.say("long", LONG)
        assert echo.heard == ["greeting"]

    with_echo(scenario)


def test_messages_without_an_end_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_PARTS", 3)
    joiner = parts.Joiner()
    for call_id in (1, 2, 3):
        assert joiner.add(call_id, b"begin", has_more=True) is None
    with pytest.raises(parts.TooLong):
        joiner.add(4, b"begin", has_more=True)
    joiner.drop(1)
    joiner.drop(4)
    assert joiner.add(2, b" end", has_more=False) == b"begin end"
    assert joiner.add(5, b"begin", has_more=True) is None
