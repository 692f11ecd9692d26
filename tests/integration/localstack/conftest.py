"""A local page over a stack that is made up: its admin ports, its spans, its traffic."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from baton.localstack.home import Home, StackState
from baton.localstack.ports import free_ports
from baton.page.span_store import SpanStore, StoredSpan

METRICS = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 3
# TYPE baton_kv_blocks gauge
baton_kv_blocks{engine="0",model_name="demo"} 200
# TYPE baton_kv_blocks_used gauge
baton_kv_blocks_used{engine="0",model_name="demo"} 50
# TYPE baton_gateway_open_requests gauge
baton_gateway_open_requests 1
"""
NASTY = "<img src=x onerror=alert(1)>"
OPEN = [
    {
        "request_id": "req-open", "endpoint": "chat", "tenant": NASTY, "model": "demo",
        "stage": "decode", "age_s": 1.5, "num_prompt_tokens": 40, "num_output_tokens": 7,
        "num_attempts": 1, "workers": ["decode-1"],
    }
]  # fmt: skip


class Admin(http.server.BaseHTTPRequestHandler):
    """Every service's admin port at once."""

    def do_GET(self) -> None:
        body = json.dumps(OPEN) if self.path == "/requests" else METRICS
        known = ("/requests", "/metrics", "/stats/prometheus", "/ready")
        self.send_response(200 if self.path in known else 404)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def span(span_id: str, parent: str, name: str, service: str, start_ms: int, end_ms: int):
    attributes = {"gen_ai.request.model": "demo", "note": NASTY}
    if name in ("chat demo", "prefill"):
        attributes["baton.outcome"] = "stop"
    if name in ("decode", "prefill"):
        attributes["baton.worker_id"] = service
    return StoredSpan(
        "t1", span_id, parent, "req-done", service, name,
        start_ms * 1_000_000, end_ms * 1_000_000, False, attributes,
    )  # fmt: skip


def moved() -> list[StoredSpan]:
    """A request whose first decode worker was lost in mid-stream."""
    lost = {"baton.lost.worker_id": "decode-1", "baton.lost.reason": "worker_lost"}
    whole = {"baton.num_attempts": "2", "baton.outcome": "stop"}
    rows = [
        ("a", "", "chat demo", "gateway", 0, 3000, whole),
        ("b", "a", "decode", "decode_worker", 20, 900, {"baton.worker_id": "decode-1"}),
        ("c", "a", "move", "gateway", 900, 1400, lost),
        (
            "d", "a", "decode", "decode_worker", 1000, 2990,
            {"baton.worker_id": "decode-2", "baton.epoch": "2"},
        ),
    ]  # fmt: skip
    return [
        StoredSpan(
            "t2", span_id, parent, "req-moved", service, name,
            start_ms * 1_000_000, end_ms * 1_000_000, False, attributes,
        )
        for span_id, parent, name, service, start_ms, end_ms, attributes in rows
    ]  # fmt: skip


def ended(number: int) -> StoredSpan:
    """One of many requests that have just ended."""
    start_ns = time.time_ns() - 20_000_000
    attributes = {"gen_ai.request.model": "demo", "baton.outcome": "stop", "baton.tenant": "busy"}
    return StoredSpan(
        f"n{number}", f"n{number}", "", f"req_{number:032x}", "gateway", "chat demo",
        start_ns, start_ns + 10_000_000, False, attributes,
    )  # fmt: skip


class Traffic:
    """Requests that end, ten a second, until it is left."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.num_ended = 0

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with SpanStore(self._home.spans) as store:
            while not self._is_over.wait(0.1):
                store.add([ended(self.num_ended)])
                self.num_ended += 1


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The folder of the made-up stack."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    return home


@pytest.fixture(scope="module")
def page(home: Home) -> Iterator[str]:
    """The URL of a page over a stack of one gateway and one worker, which are made up."""
    admin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Admin)
    threading.Thread(target=admin.serve_forever, daemon=True).start()
    metrics = f"http://127.0.0.1:{admin.server_port}/metrics"
    rows = {
        name: {"pid": 1, "endpoint": "", "metrics_url": metrics} for name in ("gateway", "decode-1")
    }
    elsewhere = f"http://127.0.0.1:{admin.server_port}/stats/prometheus"
    rows["envoy"] = {"pid": 1, "endpoint": "", "metrics_url": elsewhere}
    with SpanStore(home.spans) as store:
        store.add(
            [
                span("a", "", "chat demo", "gateway", 0, 100),
                span("b", "a", "decode", "decode-1", 20, 90),
                span("p", "b", "prefill", "prefill-1", 24, 45),
                span("c", "p", "prefill.compute", "prefill-1", 25, 40),
                *moved(),
            ]
        )
    (port,) = free_ports(1)
    environment = {"BATON_WEB_LISTEN": f"127.0.0.1:{port}", "BATON_WEB_HOME": str(home.root)}
    with home.lock():
        home.write_state(StackState(os.getpid(), "http://127.0.0.1:1/v1", True, rows))
        process = subprocess.Popen(
            [sys.executable, "-m", "baton.localstack.web"], env={**os.environ, **environment}
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.wait(60) == 0
            admin.shutdown()
            admin.server_close()


def wait_for(url: str) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def get(url: str):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)
