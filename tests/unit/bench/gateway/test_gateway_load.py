"""The gateway benchmark: the pace of a simulated answer, and the count of its tokens."""

import asyncio

from baton.demo_model import demo_model_path
from baton.wire.model_files import read_model_files
from baton.worker.settings import Settings
from bench.gateway.gateway_bench import parts_ms
from bench.gateway.gateway_report import render
from bench.gateway.load_client import CountingConnection
from bench.gateway.pace import AnswerPace
from bench.gateway.simulated_worker import make_reports
from services.router.fleet.reported import registration_of

HEAD = b"HTTP/1.1 200 OK\r\nserver-timing: auth;dur=0.1, simulated;dur=20.5\r\n\r\n"


class Transport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take a request."""


def event(text: str) -> bytes:
    data = f'data: {{"content":"{text}"}}\n\n'.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_a_pace_travels_in_the_seed_of_a_request() -> None:
    pace = AnswerPace(prefill_ms=400, step_us=3_600_000_000)
    assert pace.seed < 2**63
    assert AnswerPace.of_seed(pace.seed) == pace


def test_a_router_takes_the_simulated_worker_with_its_settings_left_out() -> None:
    folder = demo_model_path()
    settings = Settings(worker_id="decode-1", model=str(folder))
    reports = make_reports(settings, read_model_files(folder))
    assert registration_of(reports.register).num_blocks > 0


async def test_tokens_are_counted_however_they_are_cut_and_merged() -> None:
    connection = CountingConnection()
    connection.connection_made(Transport())
    connection.ask(b"")
    body = event("") + event(" one") + event(" two three") + event(" four")
    connection.data_received(HEAD + event(""))
    assert not connection.begun.done()
    connection.data_received(body[len(event("")) : 60])
    for start in range(60, len(body), 60):
        connection.data_received(body[start : start + 60])
    connection.data_received(b"0\r\n\r\n")
    assert connection.begun.done()
    assert connection.ended.done()
    assert connection.stages_s == {"auth": 0.0001, "simulated": 0.0205}
    assert connection.num_spaces - body.count(b"data: ") == 4


def test_the_run_with_the_least_cpu_time_is_shown() -> None:
    run = {"pace": "paced", "tokens_per_s": 12_800, "events_per_s": 12_800, "gateway_cores": 0.5}
    lags = {"lag_p50_ms": 1.0, "lag_p99_ms": 4.0}
    records = [
        {"part": "tokens", **run, **lags, "us_per_token": us_per_token}
        for us_per_token in (40.0, 20.0, 30.0)
    ]
    assert "| paced | 20.0 | 12,800 | 12,800 | 0.50 | 1.0 / 4.0 |" in render(records)


def test_the_parts_of_the_added_time_add_up() -> None:
    added_s, stages_s = [0.010, 0.012], [{"auth": 0.001, "pick": 0.004}, {"pick": 0.006}]
    parts = parts_ms(added_s, stages_s)
    assert parts == {"all of it": 11.0, "auth": 0.5, "pick": 5.0, "rest": 5.5}
    run = {"load": "1", "cpu_ms": {"gateway": 2.0}, "requests_per_s": 30.0}
    run |= {"added_ttft_p50_ms": 11.0, "added_ttft_p99_ms": 12.0, "added_parts_ms": parts}
    assert "| pick | 5.00 |" in render([{"part": "ttft", **run}])
