"""Runs the test folders one after the other and prints a table of their times.

The times in SECONDS are the suite's budget on two cores (without set-up). A folder over its row is
a warning, not a failure: machines are noisy. Extra arguments go to pytest.

Skips are printed with their reasons. With BATON_APT=1, as in CI, everything but hardware can be
installed, so a skip for another reason is a failure.
"""

import ast
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from baton.system.cores import num_available_cores

# Folder -> budget in seconds.
SECONDS = {
    "unit": 15,
    "architecture": 30,
    "model": 120,
    "engines": 15,
    "simulation": 60,
    "integration": 120,
    "e2e": 150,
    "chart": 40,
    "chaos": 100,
}
ENVIRONMENT = {
    # One torch thread per worker: two processes with two OpenMP threads each on two cores crawl.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "0",
    # Hundreds of processes start here: only the first compiles the modules that all import.
    "PYTHONDONTWRITEBYTECODE": "",
}
# Tests that only compute: one process per core, one thread each.
COMPUTING = ["-n", str(min(num_available_cores(), 4)), "--dist", "worksteal"]
# The same, where what a file's tests share takes long to make.
SHARING = [*COMPUTING[:2], "--dist", "loadfile"]
# Tests that mostly wait for processes: more than cores, and a file's tests stay together. In their
# order: bench/ comes first, whose few tests take longest and would be left alone at the end.
WAITING = ["-n", str(min(num_available_cores() + 1, 4)), "--dist", "loadfile"]
WAITING += ["--no-loadscope-reorder"]
# Whole stacks, each of several processes: two at a time (tests/e2e/conftest.py says which tests).
STACKS = ["-n", "2", "--dist", "loadscope"]
# By folder. Chaos has the machine to itself: how soon faults are found is measured.
OPTIONS = {
    "unit": COMPUTING,
    "architecture": COMPUTING,
    "model": COMPUTING,
    "simulation": COMPUTING,
    "integration": WAITING,
    "e2e": STACKS,
    "chart": SHARING,
}
PYTEST_NO_TESTS = 5
# The beginning of a skip's reason that no installation can remove (tests/needs.py).
HARDWARE = ("needs a GPU", "needs a CPU with ")


class Result(NamedTuple):
    """The results in one junit file."""

    num_passed: int
    num_failed: int
    skips: Counter[str]  # by reason


class Row(NamedTuple):
    folder: str
    result: Result
    seconds: float


def main(arguments: list[str]) -> int:
    rows = []
    failed = False
    with TemporaryDirectory() as reports:
        for folder in SECONDS:
            print(f"== tests/{folder}", flush=True)
            report = Path(reports) / f"{folder}.xml"
            started = time.monotonic()
            status = run(folder, [f"--junitxml={report}", *arguments])
            failed |= status not in (0, PYTEST_NO_TESTS)
            rows.append(Row(folder, read(report), time.monotonic() - started))
    print_table(rows)
    skips = sum((row.result.skips for row in rows), Counter[str]())
    return 0 if may_skip(skips) and not failed else 1


def run(folder: str, options: list[str]) -> int:
    """Run pytest; returns its exit status."""
    command = [sys.executable, "-m", "pytest", f"tests/{folder}", *options]
    command += OPTIONS.get(folder, [])
    return subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=False).returncode


def read(report: Path) -> Result:
    """Read a report; a run without one has failed."""
    if not report.exists():
        return Result(0, 1, Counter())
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    skips = Counter(reason_of(skipped) for skipped in suite.iter("skipped"))
    num_failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return Result(int(suite.get("tests", 0)) - num_failed - skips.total(), num_failed, skips)


def reason_of(skipped: ElementTree.Element) -> str:
    """The reason of a skip; for a whole file pytest writes (path, line, reason) into the text."""
    reason = skipped.get("message", "")
    if reason == "collection skipped":
        _, _, reason = ast.literal_eval(skipped.text or "")
    return reason.removeprefix("Skipped: ")


def may_skip(skips: Counter[str]) -> bool:
    """Print all skips; False when one misses something that CI could have installed."""
    is_ci = os.environ.get("BATON_APT") == "1"
    missing = [reason for reason in skips if not reason.startswith(HARDWARE)]
    for reason, number in skips.items():
        verdict = "not allowed in CI" if is_ci and reason in missing else "skipped"
        print(f"{number:>4} {verdict}: {reason}")
    return not (is_ci and missing)


def print_table(rows: list[Row]) -> None:
    print(f"\n{'folder':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'budget':>8}")
    for folder, result, seconds in rows:
        late = "  over its budget" if seconds > SECONDS[folder] else ""
        counts = f"{result.num_passed:>8}{result.num_failed:>8}{result.skips.total():>9}"
        print(f"{folder:<14}{counts}{seconds:>9.1f}{SECONDS[folder]:>8}{late}")
    num_passed = sum(row.result.num_passed for row in rows)
    num_failed = sum(row.result.num_failed for row in rows)
    num_skipped = sum(row.result.skips.total() for row in rows)
    print(f"\n{num_passed} passed, {num_failed} failed, {num_skipped} skipped")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
