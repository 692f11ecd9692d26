"""The local web page: what it serves, to whom, and what a real browser makes of it."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.localstack.home import Home, StackState
from baton.localstack.ports import free_ports
from baton.localstack.span_store import SpanStore, StoredSpan
from tests import needs

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


class _Admin(http.server.BaseHTTPRequestHandler):
    """Every service's admin port at once."""

    def do_GET(self) -> None:
        body = json.dumps(OPEN) if self.path == "/requests" else METRICS
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def span(span_id: str, parent: str, name: str, service: str, start_ms: int, end_ms: int):
    attributes = {"gen_ai.request.model": "demo", "baton.outcome": "stop", "note": NASTY}
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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a page over a stack of one gateway and one worker, which are made up."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    admin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Admin)
    threading.Thread(target=admin.serve_forever, daemon=True).start()
    metrics = f"http://127.0.0.1:{admin.server_port}/metrics"
    rows = {
        name: {"pid": 1, "endpoint": "", "metrics_url": metrics} for name in ("gateway", "decode-1")
    }
    with SpanStore(home.spans) as store:
        store.add(
            [
                span("a", "", "chat demo", "gateway", 0, 100),
                span("b", "a", "decode", "decode-1", 20, 90),
                span("c", "b", "prefill.compute", "prefill-1", 25, 40),
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


def test_the_fleet_its_requests_and_a_waterfall_are_told(page: str) -> None:
    look = get(f"{page}/api/fleet")
    assert look["fleet"]["workers"][0]["num_running"] == 3
    assert look["fleet"]["workers"][0]["kv_share"] == 0.25
    assert look["requests"][0]["request_id"] == "req-open"
    recent = get(f"{page}/api/requests")
    took_s = {row["request_id"]: row["seconds"] for row in recent}
    assert took_s == {"req-done": 0.1, "req-moved": 3}
    assert [each["name"] for each in get(f"{page}/api/requests/req-done")] == [
        "chat demo", "decode", "prefill.compute",
    ]  # fmt: skip


def test_another_host_name_is_refused(page: str) -> None:
    asked = urllib.request.Request(f"{page}/api/fleet", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=30)
    assert refused.value.code == 400
    refused.value.close()


def in_a_browser(url: str, folder: Path) -> str:
    """What the page is after its scripts have run."""
    command = [
        str(needs.BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
        "--virtual-time-budget=4000", f"--user-data-dir={folder}", "--dump-dom", url,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    return ran.stdout


@needs.browser
def test_a_browser_shows_it_and_runs_nothing_that_came_from_outside(
    page: str, tmp_path: Path
) -> None:
    shown = in_a_browser(f"{page}/#req-done", tmp_path)
    assert "req-open" in shown
    assert "prefill.compute" in shown
    assert '<dialog id="waterfall" aria-labelledby="waterfall-title" open="">' in shown
    assert "<img" not in shown
    assert "&lt;img src=x" in shown


@needs.browser
def test_the_waterfall_of_a_moved_request_tells_its_attempts_apart(
    page: str, tmp_path: Path
) -> None:
    shown = in_a_browser(f"{page}/#req-moved", tmp_path)
    assert "2 attempts" in shown
    assert "off decode-1: worker_lost" in shown
    assert "decode-2, attempt 2" in shown
    assert shown.index("off decode-1") < shown.index("decode-2, attempt 2")
