import socket

from services.edge.listener import ClientSide, listener
from services.edge.settings import Settings


def test_no_kernel_limit_cuts_a_reader_that_is_slow_but_steady() -> None:
    """TCP_USER_TIMEOUT counts a window that opens a little at a time as no acknowledgement."""
    made = listener(ClientSide(Settings(gateways=("127.0.0.1:1",)), tracing=None))
    options = {(option.level, option.name) for option in made.socket_options}
    assert options == {(socket.SOL_SOCKET, socket.SO_SNDBUF)}
