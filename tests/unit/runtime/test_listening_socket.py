"""The listening socket of HTTP servers."""

import socket

from baton.runtime.listening_socket import listening_socket


def test_a_peer_that_is_silent_while_it_waits_is_asked_for_a_sign_of_life() -> None:
    with listening_socket("127.0.0.1:0") as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname()):
            bound.setblocking(True)
            accepted, _ = bound.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                kept = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                idle, interval, probes = (accepted.getsockopt(socket.IPPROTO_TCP, k) for k in kept)
                assert idle + interval * probes <= 10
