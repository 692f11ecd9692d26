import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
from baton.runtime.process import Misconfigured, run
async def main(process):
    {body}
run("test", main)
"""


def start(body: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("body", "status", "last_words"),
    [
        ("return", 0, ""),
        ("raise Misconfigured('no such model')", 2, "no such model"),
        ("raise RuntimeError('bug')", 1, "service_failed"),
    ],
)
def test_exit_status_says_how_it_ended(body: str, status: int, last_words: str) -> None:
    process = start(body)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == status
    assert last_words in (errors.splitlines() or [""])[-1]


def test_a_malformed_sampling_ratio_is_one_line() -> None:
    process = start("return", OTEL_TRACES_SAMPLER_ARG="often")
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert errors.startswith("OTEL_TRACES_SAMPLER_ARG")


def test_malformed_headers_of_spans_are_one_line_without_them() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    process = start("return", OTEL_EXPORTER_OTLP_HEADERS="hunter2", **endpoint)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert errors.startswith("OTEL_EXPORTER_OTLP_HEADERS: entry 1")
    assert "hunter2" not in errors


def test_counters_with_known_labels_begin_at_0() -> None:
    process = start("import prometheus_client as p; print(p.generate_latest().decode())")
    shown, _ = process.communicate(timeout=100)
    assert 'baton_spans_dropped_total{reason="not_exported"} 0.0' in shown


def test_the_garbage_collector_never_looks_at_what_was_imported() -> None:
    process = start("import gc; print(gc.get_freeze_count(), len(gc.get_objects()))")
    shown, _ = process.communicate(timeout=100)
    num_kept, num_looked_at = map(int, shown.split())
    assert num_kept > 20 * num_looked_at


def test_first_signal_asks_to_stop_and_a_second_ends_at_once() -> None:
    body = "print('up', flush=True); await process.stopping.wait(); print('draining', flush=True)"
    calm = start(body)
    stubborn = start(body + "; await __import__('asyncio').Event().wait()")
    for process in (calm, stubborn):
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
    stubborn.send_signal(signal.SIGTERM)
    for process in (calm, stubborn):
        process.communicate(timeout=100)
    assert (calm.returncode, stubborn.returncode) == (0, 130)
