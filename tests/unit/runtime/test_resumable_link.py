"""Frames over broken connections: each arrives once, in order, whatever was lost on the way."""

import random
from collections import deque
from typing import Any

import pytest

from baton.runtime import resumable_link
from baton.runtime.resumable_link import ACK_FRAMES, NotResumable, ResumableLink
from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import memory_stream_pair
from baton.wire.v1 import worker_pb2

Frame = worker_pb2.GatewayFrame


class End:
    """One end of a link; its frames are byes with a number."""

    def __init__(self) -> None:
        self.to_say: deque[int] = deque()
        self.heard: list[int] = []
        self.memory = ResumableLink(self._source, Frame)
        self.connect(0)

    def connect(self, num_taken: int) -> None:
        # `_next` is called as the writer would; no stream is needed for it.
        stream, _ = memory_stream_pair()
        self.memory.connect(stream, num_taken)

    def write(self) -> worker_pb2.GatewayFrame | None:
        frame = self.memory._next()
        if frame is None:
            return None
        copy = Frame()
        copy.CopyFrom(frame)
        return copy

    def take(self, frame: worker_pb2.GatewayFrame) -> None:
        if self.memory.take(frame) and frame.HasField("bye"):
            self.heard.append(int(frame.bye.reason))

    def _source(self) -> worker_pb2.GatewayFrame | None:
        return Frame(bye={"reason": str(self.to_say.popleft())}) if self.to_say else None


def written(end: End) -> list[worker_pb2.GatewayFrame]:
    frames = []
    while (frame := end.write()) is not None:
        frames.append(frame)
    return frames


def test_after_a_break_only_what_the_peer_lacks_is_written_again() -> None:
    end = End()
    end.to_say.extend(range(5))
    assert [frame.seq for frame in written(end)] == [1, 2, 3, 4, 5]
    end.connect(3)
    end.to_say.append(9)
    assert [(frame.seq, frame.bye.reason) for frame in written(end)] == [
        (4, "3"), (5, "4"), (6, "9"),
    ]  # fmt: skip


def test_a_frame_is_kept_until_its_ack_and_no_longer() -> None:
    end = End()
    end.to_say.extend(range(5))
    written(end)
    end.take(Frame(ack=4))
    assert end.memory.num_unacknowledged == 1
    with pytest.raises(NotResumable):
        end.connect(3)
    with pytest.raises(NotResumable):
        end.connect(6)


def test_a_listener_acknowledges_even_when_it_has_nothing_to_say() -> None:
    end = End()
    for seq in range(1, ACK_FRAMES):
        end.take(Frame(seq=seq, bye={"reason": "0"}))
    assert written(end) == []
    end.take(Frame(seq=ACK_FRAMES, bye={"reason": "0"}))
    assert written(end) == [Frame(ack=ACK_FRAMES)]


def test_a_talker_that_is_not_acknowledged_holds_its_frames_back() -> None:
    end = End()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumable_link, "MAX_UNACKNOWLEDGED_FRAMES", 3)
        end.to_say.extend(range(5))
        assert len(written(end)) == 3
        end.take(Frame(ack=2))
        assert [frame.seq for frame in written(end)] == [4, 5]


def test_a_repeat_is_dropped_and_a_missing_frame_ends_the_connection() -> None:
    end = End()
    first = Frame(seq=1, bye={"reason": "7"})
    assert end.memory.take(first)
    assert not end.memory.take(first)
    with pytest.raises(StreamLost):
        end.memory.take(Frame(seq=3, bye={"reason": "8"}))
    assert end.memory.num_received == 1


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_once_and_in_order_over_any_number_of_breaks(seed: int) -> None:
    rng = random.Random(seed)
    ends = (End(), End())
    wires: tuple[deque[Any], deque[Any]] = (deque(), deque())  # from end 0, from end 1
    num_said = [0, 0]
    for _ in range(2000):
        here = rng.randrange(2)
        match rng.choices(("say", "write", "read", "break"), (3, 4, 4, 0.3))[0]:
            case "say":
                ends[here].to_say.append(num_said[here])
                num_said[here] += 1
            case "write":
                if (frame := ends[here].write()) is not None:
                    wires[here].append(frame)
            case "read" if wires[1 - here]:
                ends[here].take(wires[1 - here].popleft())
            case "break":
                reconnect(ends, wires)
    reconnect(ends, wires)
    for end, peer in (ends, ends[::-1]):
        for frame in written(end):
            peer.take(frame)
    assert ends[0].heard == list(range(num_said[1]))
    assert ends[1].heard == list(range(num_said[0]))
    reconnect(ends, wires)
    assert all(end.memory.num_unacknowledged == 0 for end in ends)


def reconnect(ends: tuple[End, End], wires: tuple[deque[Any], deque[Any]]) -> None:
    """Lose the frames on their way; the hellos name the last frame that each end took in."""
    for end, wire, peer in zip(ends, wires, reversed(ends), strict=True):
        wire.clear()
        end.connect(peer.memory.num_received)
