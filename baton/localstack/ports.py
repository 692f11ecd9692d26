"""Free TCP ports on loopback, outside the range from which the kernel takes source ports."""

import random
import socket

from baton.localstack.refusal import Refusal

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000
_MAX_TRIES = 500


class PortTaken(Refusal):
    """The requested port is in use."""


def free_ports(count: int, draw: random.Random | None = None) -> list[int]:
    """`count` different ports on which no process listens now."""
    draw = draw or random.SystemRandom()
    ports: list[int] = []
    for _ in range(_MAX_TRIES + count):
        if len(ports) == count:
            return ports
        port = draw.randint(_FIRST, _LAST)
        if port not in ports and is_free(port):
            ports.append(port)
    raise PortTaken(f"no {count} free ports between {_FIRST} and {_LAST}")


def is_free(port: int) -> bool:
    """True if a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
