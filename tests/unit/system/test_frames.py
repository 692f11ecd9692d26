import socket

import msgspec
import pytest

from baton.system.frames import FrameDecoder, FrameSocket, PeerClosed, encode_frame


class Note(msgspec.Struct):
    text: str


def decoder() -> "msgspec.msgpack.Decoder[Note]":
    return msgspec.msgpack.Decoder(Note)


def test_frames_survive_any_cut_of_the_byte_stream() -> None:
    data = b"".join(encode_frame(msgspec.msgpack.Encoder(), Note("x" * n)) for n in range(5))
    for size in (1, 2, 3, 7, len(data)):
        frames = FrameDecoder(decoder())
        notes = [n for i in range(0, len(data), size) for n in frames.feed(data[i : i + size])]
        assert [len(note.text) for note in notes] == [0, 1, 2, 3, 4]


def test_an_oversized_length_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        FrameDecoder(decoder()).feed(b"\xff\xff\xff\xff")


def test_socket_delivers_frames_and_reports_a_closed_peer() -> None:
    left, right = socket.socketpair()
    one, two = FrameSocket(left, decoder()), FrameSocket(right, decoder())
    one.send(Note("hello"))
    one.send(Note("again"))
    notes = two.receive(None)
    assert [note.text for note in notes] == ["hello", "again"]
    assert two.receive(0) == []
    one.close()
    with pytest.raises(PeerClosed):
        two.receive(None)
    with pytest.raises(PeerClosed):
        for _ in range(2):
            two.send(Note("lost"))
    two.close()
