"""`python -m bench engine` end to end on a model of seconds, without peers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPTIONS = ["--model", "nano", "--engine", "baton", "--batch", "2", "--kv-memory", "64MiB"]
# A run that hangs; four processes load torch, which takes a busy machine a minute and more.
LIMIT_S = 280
SHORT = ["--threads", "1", "--rounds", "1", "--requests", "1"]


@pytest.mark.timeout(LIMIT_S + 20)
def test_offline_and_served_runs_of_a_tiny_model_end_in_a_table(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    files = ["--cache", str(tmp_path / "cache"), "--output", str(output)]
    parts = ["--part", "offline,served"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "engine", *OPTIONS, *SHORT, *files, *parts],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["part"] for record in records] == ["environment"] + 3 * ["offline"] + 2 * [
        "served"
    ]
    *_, start, load = records
    assert start["first_token_s"] > 0
    assert (load["num_requests"], load["num_errors"]) == (2, 0)
    assert load["memory_bytes"] > load["pool_bytes"] > 0
    assert "### nano, without servers" in ran.stdout
    assert "### nano, served" in ran.stdout
