"""Runs the test folders one after the other and prints a table of their times.

The times in SECONDS are the suite's budget on two cores (without set-up). A folder over its row is
a warning, not a failure: machines are noisy. Extra arguments go to pytest.
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory

from baton.system.cores import num_available_cores

# Folder -> budget in seconds.
SECONDS = {
    "unit": 15,
    "architecture": 30,
    "model": 120,
    "simulation": 60,
    "integration": 120,
    "e2e": 150,
    "chart": 40,
    "chaos": 100,
    "fuzz": 45,
}
ENVIRONMENT = {
    # One torch thread per worker: two processes with two OpenMP threads each on two cores crawl.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "0",
    # Hundreds of processes start here: only the first compiles what they all import.
    "PYTHONDONTWRITEBYTECODE": "",
}
# Folders whose tests only compute: one process per core, one thread each.
PARALLEL = ("unit", "architecture", "model", "simulation")
PARALLEL_OPTIONS = ["-n", str(min(num_available_cores(), 4)), "--dist", "worksteal"]
PYTEST_NO_TESTS = 5


def main(arguments: list[str]) -> int:
    rows = []
    failed = False
    with TemporaryDirectory() as reports:
        for folder, budget_s in SECONDS.items():
            path = Path("tests") / folder
            if not path.is_dir():
                continue
            print(f"== {path}", flush=True)
            report = Path(reports) / f"{folder}.xml"
            command = [sys.executable, "-m", "pytest", str(path), f"--junitxml={report}"]
            if folder in PARALLEL:
                command += PARALLEL_OPTIONS
            started = time.monotonic()
            status = subprocess.run(
                command + arguments, env={**os.environ, **ENVIRONMENT}, check=False
            ).returncode
            if status not in (0, PYTEST_NO_TESTS):
                failed = True
            rows.append((folder, *counts(report), time.monotonic() - started, budget_s))
    print_table(rows)
    return 1 if failed else 0


def counts(report: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) of one junit file."""
    if not report.exists():
        return 0, 1, 0
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return total - bad - skipped, bad, skipped


def print_table(rows: list[tuple[str, int, int, int, float, int]]) -> None:
    print(f"\n{'folder':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'budget':>8}")
    for folder, passed, bad, skipped, seconds, budget_s in rows:
        late = "  over its budget" if seconds > budget_s else ""
        print(f"{folder:<14}{passed:>8}{bad:>8}{skipped:>9}{seconds:>9.1f}{budget_s:>8}{late}")
    passed, bad, skipped = (sum(row[i] for row in rows) for i in (1, 2, 3))
    print(f"\n{passed} passed, {bad} failed, {skipped} skipped")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
