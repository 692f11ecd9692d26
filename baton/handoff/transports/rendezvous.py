"""Hands one file descriptor from one worker to another through a folder that both have mapped.

One side listens on a Unix socket whose name is a nonce; the other connects to that name in its own
folder and sends the descriptor. Success proves that the two folders are one: no other folder has a
socket of that name. All of it happens at once, within one exchange of hellos; the socket is gone
afterwards. Linux only. Knows nothing of what is handed over.
"""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

NONCE_BYTES = 16
_NONCE = re.compile(r"[0-9a-f]{32}")
_MAX_MESSAGE_BYTES = 512


class RendezvousFailed(Exception):
    """The peer has not come, or did not hand over a file."""


class Rendezvous:
    """The listening side, for one peer. Raises OSError when the folder cannot be written to."""

    def __init__(self, folder: Path, nonce: str) -> None:
        self.nonce = nonce
        self._file = folder / nonce
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.setblocking(False)
            with _short_path(folder, nonce) as path:
                self._listener.bind(path)
            self._file.chmod(0o600)
            self._listener.listen(1)
        except OSError:
            self.close()
            raise

    def receive(self) -> tuple[bytes, int]:
        """The peer's message and its file, which the caller owns. Raises RendezvousFailed."""
        try:
            peer, _ = self._listener.accept()
            with peer:
                peer.setblocking(False)
                message, fds, _, _ = socket.recv_fds(peer, _MAX_MESSAGE_BYTES, 1)
        except OSError as error:
            raise RendezvousFailed(f"nobody came: {error.strerror}") from error
        if len(fds) != 1:
            raise RendezvousFailed("no file was handed over")
        os.set_inheritable(fds[0], False)
        return message, fds[0]

    def close(self) -> None:
        """Safe to call twice."""
        self._listener.close()
        self._file.unlink(missing_ok=True)


def hand_over(folder: Path, nonce: str, message: bytes, fd: int) -> None:
    """The other side. Raises OSError when no such socket is in this folder, and ValueError."""
    if not _NONCE.fullmatch(nonce):
        raise ValueError("the nonce is none")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.setblocking(False)
        with _short_path(folder, nonce) as path:
            peer.connect(path)
        socket.send_fds(peer, [message], [fd])


@contextlib.contextmanager
def _short_path(folder: Path, name: str) -> Iterator[str]:
    """A path of few characters: a socket's may have 107."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
