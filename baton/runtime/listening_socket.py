"""The listening socket of an HTTP server, bound before anything is served."""

import socket

from baton.runtime.process import Misconfigured


def listening_socket(listen: str, *, send_buffer_bytes: int = 0) -> socket.socket:
    """A socket bound to "host:port"; 0 bytes = the kernel's own send buffer. Raises
    Misconfigured."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer_bytes:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        bound.bind((host.strip("[]"), int(port)))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise Misconfigured(f"cannot listen on {listen}: {error.strerror}") from error
    return bound
