"""How a worker process ends when it cannot, or shall not, start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from bench.machine import living

WORKER = [sys.executable, "-m", "services.decode_worker"]


def start(model: Path) -> subprocess.Popen:
    environment = {**os.environ, "BATON_WORKER_MODEL": str(model), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(WORKER, env=environment, stderr=subprocess.PIPE, text=True)


def test_a_worker_that_is_told_to_stop_while_it_loads_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    worker = start(tmp_path)
    for line in worker.stderr:
        if '"loading"' in line:
            break
    cores = psutil.Process(worker.pid).children(recursive=True)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=100)
    assert worker.returncode == 0
    assert not living(cores)


def test_a_model_that_cannot_be_served_ends_the_worker_with_one_line(tmp_path: Path) -> None:
    worker = start(tmp_path / "nowhere")
    _, errors = worker.communicate(timeout=200)
    assert worker.returncode == 2
    assert "nowhere" in errors.splitlines()[-1]
    assert not errors.splitlines()[-1].startswith("{")
