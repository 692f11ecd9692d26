"""The listening socket of an HTTP server, bound before anything is served, or inherited."""

import socket

from baton.runtime.process import Misconfigured

# Before the number of a socket that the parent process has bound.
INHERITED = "fd:"
# A peer whose machine is silent for 10 s while it waits for an answer is lost; work for it ends.
# Accepted sockets inherit these.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 4, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}


def listening_socket(listen: str, *, send_buffer_bytes: int = 0) -> socket.socket:
    """A socket bound to "host:port", or the parent's socket number 3 for "fd:3"; 0 bytes = the
    kernel's own send buffer. Raises Misconfigured."""
    if listen.startswith(INHERITED):
        return _inherited(listen)
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer_bytes:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            bound.setsockopt(socket.IPPROTO_TCP, option, value)
        bound.bind((host.strip("[]"), int(port)))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise Misconfigured(f"cannot listen on {listen}: {error.strerror}") from error
    return bound


def _inherited(listen: str) -> socket.socket:
    try:
        bound = socket.socket(fileno=int(listen.removeprefix(INHERITED)))
        bound.setblocking(False)
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{listen} is not a socket of the parent process") from error
    return bound
