"""Length-prefixed msgpack frames over a Unix socket pair, without pickle.

One frame = 4 bytes little-endian length + msgpack. The blocking half serves the core process, whose
loop polls it between steps; the front reads the same frames with asyncio
(`baton/engine/process/process_client.py`).
"""

import selectors
import socket
from typing import Generic, TypeVar

import msgspec

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024
_RECEIVE_BYTES = 256 * 1024

T = TypeVar("T")


class PeerClosed(Exception):
    """The peer closed its end of the socket pair."""


class FrameDecoder(Generic[T]):
    """Cuts a byte stream into decoded frames."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[T]:
        """Take bytes, return the frames that they complete. Raises ValueError on a bad length."""
        buffer = self._buffer
        buffer += data
        frames: list[T] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            length = int.from_bytes(buffer[start : start + HEADER_BYTES], "little")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
            end = start + HEADER_BYTES + length
            if len(buffer) < end:
                break
            frames.append(self._decoder.decode(memoryview(buffer)[start + HEADER_BYTES : end]))
            start = end
        del buffer[:start]
        return frames


def encode_frame(encoder: msgspec.msgpack.Encoder, message: object) -> bytearray:
    """One frame, header included."""
    buffer = bytearray(HEADER_BYTES)
    encoder.encode_into(message, buffer, HEADER_BYTES)
    buffer[:HEADER_BYTES] = (len(buffer) - HEADER_BYTES).to_bytes(HEADER_BYTES, "little")
    return buffer


class FrameSocket(Generic[T]):
    """The blocking side: receives decoded frames of type T, sends any msgspec struct."""

    def __init__(self, sock: socket.socket, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._frames = FrameDecoder(decoder)
        self._encoder = msgspec.msgpack.Encoder()
        self._receive_buffer = bytearray(_RECEIVE_BYTES)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)

    def receive(self, timeout_s: float | None) -> list[T]:
        """Frames that arrive within `timeout_s` (0 = those already there, None = wait).

        Raises PeerClosed when the peer closed its end.
        """
        frames: list[T] = []
        while self._selector.select(timeout_s):
            try:
                count = self._sock.recv_into(self._receive_buffer)
            except ConnectionError as error:
                raise PeerClosed from error
            if count == 0:
                raise PeerClosed
            frames += self._frames.feed(memoryview(self._receive_buffer)[:count])
            if frames:
                timeout_s = 0
        return frames

    def send(self, message: object) -> None:
        """Send one frame, and wait while the peer's buffer is full. Raises PeerClosed."""
        try:
            self._sock.sendall(encode_frame(self._encoder, message))
        except ConnectionError as error:
            raise PeerClosed from error

    def close(self) -> None:
        self._selector.close()
        self._sock.close()
