"""Measures what Locust itself adds to the times it measures: `python -m loadtest.cost`.

A server with a known pace, and beside Locust another client, `loadtest.raw_client`: raw sockets on
asyncio, a parser in C, nothing computed while it measures. Both send the same requests.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.ask import PATH, Ask
from loadtest.reporting.latency import summarize
from loadtest.workloads import KINDS, Conversation, Writer

TTFT_MS, GAP_MS = 100.0, 20.0
NUM_TOKENS = 50
USERS = (1, 10, 50)
_SECONDS = 20.0
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_SCENARIO = f"""
title = "what Locust costs"
[load]
duration_s = {_SECONDS}
users_per_s = 100
[users]
reference = {{ output_tokens = {NUM_TOKENS} }}
"""
_REQUEST_S = (TTFT_MS + GAP_MS * (NUM_TOKENS - 1)) / 1000


@contextmanager
def paced_server(ttft_ms: float, gap_ms: float) -> Iterator[str]:
    """Run the server; yields its URL."""
    command = [sys.executable, "-m", "loadtest.paced_server", f"--ttft-ms={ttft_ms}"]
    with subprocess.Popen(
        [*command, f"--gap-ms={gap_ms}"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def by_locust(url: str, num_users: int, seconds: float) -> dict[str, Any]:
    """The report of one run of the reference scenario's users."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "cost.toml"
        scenario.write_text(_SCENARIO)
        command = [
            sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--host", url,
            "--scenario", str(scenario), "--users", str(num_users), "--run-time", f"{seconds:.0f}s",
            "--headless", "--only-summary", "--report", folder, "--json-file", f"{folder}/locust",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        report: dict[str, Any] = json.loads((Path(folder) / "report.json").read_text())
        return report


def by_asyncio(url: str, num_users: int, seconds: float) -> dict[str, Any]:
    """The report of the same requests by `loadtest.raw_client`."""
    num_requests = num_users * max(round(seconds / _REQUEST_S), 1)
    plan = {
        "url": url + PATH,
        "headers": {},
        "bodies": [json.loads(_body(number)) for number in range(num_requests)],
        "concurrency": num_users,
        "timeout_s": 60,
    }
    ran = subprocess.run(
        [sys.executable, "-m", "loadtest.raw_client"],
        input=json.dumps(plan) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return summarize(json.loads(ran.stdout))


def _body(number: int) -> bytes:
    kind = KINDS["reference"]
    talk = Conversation("reference", kind, Writer(), random.Random(number), max_model_len=4096)
    return Ask(talk.next_turn(), NUM_TOKENS).body("paced")


def main() -> None:
    print(
        f"first token after {TTFT_MS:g} ms, then one in {GAP_MS:g} ms; ms, {os.cpu_count()} cores"
    )
    print(f"{'users':>5} {'client':10} {'TTFT p50':>9} {'p99':>7} {'ITL p50':>9} {'p99':>7}  CPU")
    with paced_server(TTFT_MS, GAP_MS) as url:
        for num_users in USERS:
            plain = by_asyncio(url, num_users, _SECONDS)
            names = ("ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s")
            _print(num_users, "asyncio", [plain[name] * 1000 for name in names], plain["load_cpu"])
            run = by_locust(url, num_users, _SECONDS)
            pairs = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("itl_ms", "p50"), ("itl_ms", "p99"))
            figures = [run["all"][name][share] for name, share in pairs]
            _print(num_users, "locust", figures, run["generator"]["max_cpu_percent"] / 100)


def _print(num_users: int, client: str, figures: list[float], cpu: float) -> None:
    ttft, ttft_99, itl, itl_99 = (f"{figure:.1f}" for figure in figures)
    print(f"{num_users:5d} {client:10} {ttft:>9} {ttft_99:>7} {itl:>9} {itl_99:>7}  {cpu:.2f}")


if __name__ == "__main__":
    main()
