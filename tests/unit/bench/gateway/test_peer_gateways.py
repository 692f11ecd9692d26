"""The comparison with other gateways: the worker behind them, their settings and the table."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.gateway.gateway_report import render
from bench.gateway.openai_worker import Connection, Worker
from bench.gateway.pace import AnswerPace
from bench.gateway.peer_gateways import PEERS, Place


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


def connection(worker: Worker) -> tuple[Connection, Transport]:
    made, transport = Connection(worker), Transport()
    made.connection_made(transport)
    return made, transport


def chat(num_tokens: int, pace: AnswerPace) -> bytes:
    body = json.dumps({"max_tokens": num_tokens, "seed": pace.seed}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


async def test_the_worker_streams_as_many_different_tokens_as_it_is_asked_for() -> None:
    worker = Worker()
    client, transport = connection(worker)
    client.data_received(chat(3, AnswerPace(0, 1)))
    while b"[DONE]" not in transport.written:
        await asyncio.sleep(0)
    words = [text for text in transport.written.split(b'"content":"')[2:] if text]
    assert [text[:7] for text in words] == [b" word00", b" word01", b" word02"]
    assert transport.written.endswith(b"0\r\n\r\n")
    assert worker.num_streams == 1


async def test_the_worker_tells_what_it_was_asked_for() -> None:
    worker = Worker()
    client, _ = connection(worker)
    client.data_received(chat(1, AnswerPace(0, 1)))
    other, told = connection(worker)
    other.data_received(b"GET /counts HTTP/1.1\r\n\r\n")
    assert told.written.endswith(b'{"num_streams": 1}')


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_told_where_to_listen_and_where_its_worker_is(peer, tmp_path: Path) -> None:
    words = " ".join(peer.argv(Place(7001, 7003, 7002, tmp_path)))
    words += "".join(path.read_text() for path in tmp_path.iterdir())
    assert "7001" in words
    assert "7002" in words


def test_the_cheapest_run_of_each_load_is_shown_with_work_that_was_done_twice() -> None:
    def run(load: str, us: float, **more: float) -> dict[str, object]:
        cpu, memory = {"a": us, "b": 1.0}, {"a": 50, "b": 10}
        told = {"name": "x", "version": "1.0", "load": load, "per_s": 9.0}
        return {"part": "peers", **told, "cpu_us": cpu, "memory_mib": memory, **more}

    records = [run("requests", us, asked_per_request=2.0) for us in (8.0, 7.0)]
    records += [run("8 streams", 6.0), run("128 streams", 5.0)]
    row = "| x 1.0 | 7.0; with b 8.0 | 6.0; with b 7.0 | 5.0; with b 6.0 | 9 | 60 | 2 |"
    assert row in render(records)
