"""The reason why a stack is not ready, from processes that answer late."""

import socket
import threading

import pytest

from baton.localstack import readiness


async def test_a_gateway_that_stops_in_the_middle_of_its_reasons_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answered: list[socket.socket] = []

        def answer_half() -> None:
            connection, _ = server.accept()
            answered.append(connection)
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 503 not ready\r\ncontent-length: 20\r\n\r\n")

        half = threading.Thread(target=answer_half)
        half.start()
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        assert await readiness.stack_reason({"gateway": endpoint}) == "gateway does not answer"
        half.join()
        answered[0].close()
