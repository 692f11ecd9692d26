"""Locust runs as a process against a server whose pace is known: what it measures, adds up over
workers and concludes must be right. Locust is never imported here: it patches its process.

A busy machine makes everything late and nothing early. So bounds are exact on any: the server's
schedule below; above, the longer time that a time is a part of. First token and gaps are a part of
the answer, and the answers to one user, who waits for each, are a part of the run.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.localstack.ports import free_ports
from loadtest.cost import paced_server
from loadtest.paced_server import COUNT_PATH

ROOT = Path(__file__).parents[3]
TTFT_MS, GAP_MS = 400.0, 40.0
NUM_TOKENS = 20
NUM_REFERENCES, NUM_LEAVERS = 4, 2
WHOLE_MS = TTFT_MS + GAP_MS * (NUM_TOKENS - 1)
SCENARIO = f"""
title = "a test"
[load]
users = {NUM_REFERENCES + NUM_LEAVERS}
users_per_s = 100
# Over when answers are under way.
duration_s = 1.3
[users]
reference = {{ output_tokens = {NUM_TOKENS}, weight = {NUM_REFERENCES} }}
[users.leaver]
weight = {NUM_LEAVERS}
output_tokens = 40
leave_after_pieces = 2
think_s = [0.2, 0.3]
[goodput]
ttft_ms = 60000
tpot_ms = 60000
[slo]
failed_share = 0
goodput_share = 1
# The machine may be busy: what is measured is right all the same.
lag_p99_ms = 60000
"""
NUM_REPLAYED, REPLAY_GAP_MS, REPLAY_SPEED = 40, 50, 2
REPLAY = f"""
title = "a replay"
[load]
shape = "replay"
duration_s = 1.5
[trace]
file = "trace.jsonl"
speed = {REPLAY_SPEED}
[slo]
ttft_p50_ms = 1
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with paced_server(TTFT_MS, GAP_MS) as url:
        yield url


def run_locust(folder: Path, host: str, scenario: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    (folder / "test.toml").write_text(scenario)
    command = [
        sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"),
        "--host", host, "--scenario", str(folder / "test.toml"), "--only-summary",
        *(() if "--autostart" in options else ("--headless",)),
        "--report", str(folder / "report"), "--json-file", str(folder / "locust"), *options,
    ]  # fmt: skip
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, env={**os.environ}
    )
    report = folder / "report" / "report.json"
    assert ran.returncode == 2 or report.exists(), ran.stderr[-3000:]
    return ran.returncode, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "two workers"])
def test_times_are_right_and_rows_add_up(
    tmp_path: Path, url: str, options: tuple[str, ...]
) -> None:
    num_whole_before = num_whole_answers(url)
    code, run = run_locust(tmp_path, url, SCENARIO, *options)
    assert (code, run["is_kept"], run["errors"]) == (0, True, [])
    (reference,) = (row for row in run["kinds"] if row["kind"] == "reference")
    rows = {(row["method"], row["name"]): row for row in locusts_rows(tmp_path)}
    ttft, itl, whole = (rows[row_type, "reference"] for row_type in ("TTFT", "ITL", "POST"))
    assert ttft["min_response_time"] >= TTFT_MS
    assert float(f"{ttft['min_response_time']:.3g}") <= reference["ttft_ms"]["p50"]
    assert whole["min_response_time"] >= WHOLE_MS
    # However late: first token and gaps are the whole answer up to its last token, and no more.
    last_token_ms = ttft["total_response_time"] + itl["total_response_time"]
    assert WHOLE_MS * whole["num_requests"] <= last_token_ms <= whole["total_response_time"]
    assert whole["total_response_time"] <= NUM_REFERENCES * run["duration_s"] * 1000
    end_ms = (whole["total_response_time"] - last_token_ms) / whole["num_requests"]
    assert end_ms < TTFT_MS / 2, "what the server sends with the last token comes with it"
    assert reference["input_tokens"]["p50"] == pytest.approx(1032, abs=5)
    assert reference["num_output_tokens"] == NUM_TOKENS * reference["requests"] > 0
    assert reference["requests"] == num_whole_answers(url) - num_whole_before
    (leaver,) = (row for row in run["kinds"] if row["kind"] == "leaver")
    assert leaver["requests"] > 0
    assert leaver["num_output_tokens"] == leaver["failed"] == 0
    # What Locust itself counted in the same rows, over all its workers.
    assert whole["num_requests"] == ttft["num_requests"] == reference["requests"]
    assert itl["num_requests"] == (NUM_TOKENS - 1) * reference["requests"]
    assert run["all"]["requests"] == reference["requests"] + leaver["requests"]
    assert run["generator"]["lag_ms"]["p50"] is not None
    stages = {stage["name"] for stage in run["typical_requests"][-1]["stages"]}
    assert {"tokenize", "queue", "prefill", "decode"} <= stages
    assert "baton trace req_paced" in (tmp_path / "report" / "report.html").read_text()


def num_whole_answers(url: str) -> int:
    """How many reference streams the server has written to their end."""
    with urllib.request.urlopen(url + COUNT_PATH, timeout=60) as answer:
        return int(json.load(answer).get(str(NUM_TOKENS), 0))


def locusts_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "locust.json").read_text())
    return rows


def test_a_replay_is_sent_when_it_is_due_by_all_workers_together(tmp_path: Path, url: str) -> None:
    lines = [
        {
            "timestamp": REPLAY_GAP_MS * n, "input_length": 600, "output_length": 2,
            "hash_ids": [0, n],
        }
        for n in range(1, NUM_REPLAYED + 1)
    ]  # fmt: skip
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, run = run_locust(tmp_path, url, REPLAY, "--processes", "2")
    assert (code, run["is_kept"], run["all"]["failed"]) == (1, False, 0)
    assert run["all"]["requests"] == NUM_REPLAYED
    (late,) = (row for row in locusts_rows(tmp_path) if row["method"] == "LATE")
    assert 0 <= late["min_response_time"] < NUM_REPLAYED * REPLAY_GAP_MS / REPLAY_SPEED / 2
    assert late["num_requests"] == NUM_REPLAYED
    assert run["all"]["ttft_ms"]["p50"] >= TTFT_MS
    assert any(f"{NUM_REPLAYED} requests, 2 times as fast" in note for note in run["notes"])


def test_the_web_page_ends_with_its_test_which_is_compared_with_an_earlier_one(
    tmp_path: Path, url: str
) -> None:
    (tmp_path / "test.toml").write_text(SCENARIO)
    earlier = {"scenario": "test", "all": {"ttft_ms": {"p50": 1.0}}}
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"),
        "--host", url, "--scenario", str(tmp_path / "test.toml"), "--only-summary",
        "--report", str(tmp_path / "report"), "--baseline", str(tmp_path / "earlier.json"),
        "--autostart", "--web-host", "127.0.0.1", "--web-port", str(port),
    ]  # fmt: skip
    page = f"http://127.0.0.1:{port}/latency"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as locust:
        try:
            seen_by_badge = [
                read_until(page, badge) for badge in (">running<", '"badge no">failed<')
            ]
            first_page = read_until(page.removesuffix("/latency"), "<body>")
        finally:
            locust.terminate()
    assert ["replaceWith" in text for text in seen_by_badge] == [True, False]
    assert "http-equiv" not in "".join(seen_by_badge)
    assert "TOK/S tokens a second" in first_page
    assert "position:fixed" not in first_page
    run = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [(row["name"], row["is_worse"]) for row in run["comparison"]] == [("ttft_p50_ms", True)]
    assert run["all"]["requests"] > 0
    assert run["is_kept"] is False
    assert len(run["slowest_requests"]) == min(10, run["kinds"][-1]["requests"])


def test_the_time_of_a_test_that_a_page_begins_by_itself_counts_from_its_first_user(
    tmp_path: Path, url: str
) -> None:
    (port,) = free_ports(1)
    scenario = SCENARIO.replace("duration_s = 1.3", "duration_s = 0.01")
    page = ["--autostart", "--autoquit", "0", "--web-host", "127.0.0.1", "--web-port", str(port)]
    code, run = run_locust(tmp_path, url, scenario, *page)
    assert (code, run["load"]["duration_s"]) == (0, 0.01)
    assert run["all"]["requests"] > 0


def read_until(url: str, text: str) -> str:
    """The page, once it has the text."""
    deadline_s = time.monotonic() + 200
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as answer:
            if text in (page := answer.read().decode()):
                return page
        time.sleep(0.05)
    raise TimeoutError(f"{url} never had {text}")


def test_kinds_that_nobody_was_are_named(tmp_path: Path, url: str) -> None:
    _, run = run_locust(tmp_path, url, SCENARIO, "--users", "1")
    [note] = [note for note in run["notes"] if "no request of" in note]
    assert "leaver: 1 users are too few for the weights, --users 6 has all" in note


def test_a_worker_that_is_told_of_users_builds_locusts_parser_once() -> None:
    program = (
        "from loadtest import control; from locust import argument_parser as parser;"
        "assert parser.default_args_dict() is parser.default_args_dict()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=200)


@pytest.mark.parametrize("duration_s", [0.01, 60], ids=["over before it looked", "patient"])
def test_without_a_server_nothing_is_tested(tmp_path: Path, duration_s: float) -> None:
    scenario = SCENARIO.replace("duration_s = 2", f"duration_s = {duration_s}")
    code, run = run_locust(tmp_path, "http://127.0.0.1:9", scenario)
    assert (code, run) == (2, {})


def test_without_a_stack_the_command_says_what_to_do(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "loadtest"],
        cwd=ROOT,
        env={**os.environ, "BATON_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 2
    assert "run `make up` first" in ran.stderr
    assert "Traceback" not in ran.stderr
