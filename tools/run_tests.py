"""Runs the test folders and prints a table of their times.

Folders that mostly wait for processes run one after the other. Beside them, at a low priority, run
folders that only compute: they take the time in which all else waits.

CPU_SECONDS and MAX_SECONDS are the suite's budget on two cores, without set-up. A folder over its
row is a warning, not a failure: machines are noisy. Extra arguments go to pytest.

Skips are printed with their reasons. With BATON_APT=1, as in CI, everything but hardware can be
installed, so a skip for another reason is a failure.
"""

import ast
import asyncio
import os
import resource
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from baton.system.cores import num_available_cores
from baton.system.parent_death import die_with_parent

# By the clock.
MAX_SECONDS = 540
# Folder -> budget in seconds of one core. The clock says little of folders that run side by side.
CPU_SECONDS = {
    "unit": 90,
    "architecture": 40,
    "engines": 10,
    "integration": 225,
    "e2e": 175,
    "chaos": 130,
    "model": 190,
    "simulation": 180,
    "chart": 40,
}
# In this order.
FIRST = ("unit", "architecture")
WAITING = ("engines", "integration", "e2e", "chaos")
BESIDE = ("simulation", "model", "chart")
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
PROCESSES = ["-n", str(min(num_available_cores() + 1, 4)), "--dist", "loadfile"]
PROCESSES += ["--no-loadscope-reorder"]
# Whole stacks, each of several processes: two at a time (tests/e2e/conftest.py says which tests).
STACKS = ["-n", "2", "--dist", "loadscope"]
# By folder. Chaos is one process: how soon faults are found is measured.
OPTIONS = {
    "unit": COMPUTING,
    "architecture": COMPUTING,
    "model": COMPUTING,
    "simulation": COMPUTING,
    "integration": PROCESSES,
    "e2e": STACKS,
    "chart": SHARING,
}
PYTEST_NO_TESTS = 5
# A tenth of the others' share of a processor: less would be none on a machine that others use.
LOW_PRIORITY = 10
# The beginning of a skip's reason that no installation can remove (tests/needs.py).
HARDWARE = ("needs a GPU", "needs a CPU with ")
# Nor of these, which no package index has.
PROGRAMS = ("needs Jaeger",)


class Result(NamedTuple):
    """The results in one junit file."""

    num_passed: int
    num_failed: int
    skips: Counter[str]  # by reason


class Row(NamedTuple):
    folder: str
    result: Result
    seconds: float
    cpu_seconds: float


def main(arguments: list[str]) -> int:
    started = time.monotonic()
    with TemporaryDirectory() as reports:
        suite = Suite(Path(reports), arguments)
        asyncio.run(suite.run())
    print_table(suite.rows, time.monotonic() - started)
    skips = sum((row.result.skips for row in suite.rows), Counter[str]())
    return 0 if may_skip(skips) and not suite.has_failed else 1


class Suite:
    """One run of all folders. `arguments` go to each pytest."""

    def __init__(self, reports: Path, arguments: list[str]) -> None:
        self.rows: list[Row] = []
        self.has_failed = False
        self._reports = reports
        self._arguments = arguments
        self._counted_cpu_s = 0.0

    async def run(self) -> None:
        for folder in FIRST:
            await self._run_folder(folder)
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._run_waiting())
            lanes.create_task(self._run_beside())

    async def _run_waiting(self) -> None:
        for folder in WAITING:
            await self._run_folder(folder)

    async def _run_beside(self) -> None:
        """Run folders whose output is shown as soon as they have ended."""
        for folder in BESIDE:
            output = self._reports / f"{folder}.out"
            with output.open("wb") as file:
                await self._run_folder(folder, file)
            print(f"\n{output.read_text()}", flush=True)

    async def _run_folder(self, folder: str, output: IO[bytes] | None = None) -> None:
        """With `output`, at a low priority."""
        print(f"== tests/{folder}{' begins' if output else ''}", flush=True)
        report, started = self._reports / f"{folder}.xml", time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *self._command(folder, report),
            env={**os.environ, **ENVIRONMENT},
            stdout=output,
            stderr=output,
            preexec_fn=step_aside if output else None,
        )
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            # A terminal's Ctrl-C does not reach another session.
            if output:
                process.send_signal(signal.SIGINT)
            await process.wait()
            raise
        self.has_failed |= status not in (0, PYTEST_NO_TESTS)
        seconds = time.monotonic() - started
        self.rows.append(Row(folder, read(report), seconds, self._new_cpu_seconds()))

    def _command(self, folder: str, report: Path) -> list[str]:
        command = [sys.executable, "-m", "pytest", f"tests/{folder}", f"--junitxml={report}"]
        return [*command, *self._arguments, *OPTIONS.get(folder, [])]

    def _new_cpu_seconds(self) -> float:
        """The time of the process that has just ended, and of all its own: a process counts for its
        parent once it has ended."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        before, self._counted_cpu_s = self._counted_cpu_s, used.ru_utime + used.ru_stime
        return self._counted_cpu_s - before


def step_aside() -> None:
    """Leave the processors to everything else, in a process that is about to run tests."""
    die_with_parent(signal.SIGINT)
    os.nice(LOW_PRIORITY)
    # Where Linux groups processes by session, priorities hold only within a session.
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(LOW_PRIORITY))


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
    missing = [reason for reason in skips if not reason.startswith(HARDWARE + PROGRAMS)]
    for reason, number in skips.items():
        verdict = "not allowed in CI" if is_ci and reason in missing else "skipped"
        print(f"{number:>4} {verdict}: {reason}")
    return not (is_ci and missing)


def print_table(rows: list[Row], seconds: float) -> None:
    print(
        f"\n{'folder':<14}{'passed':>8}{'failed':>8}{'skipped':>9}"
        f"{'seconds':>9}{'cpu':>7}{'budget':>8}"
    )
    for row in sorted(rows, key=lambda row: list(CPU_SECONDS).index(row.folder)):
        budget = CPU_SECONDS[row.folder]
        late = "  over its budget" if row.cpu_seconds > budget else ""
        result = row.result
        counts = f"{result.num_passed:>8}{result.num_failed:>8}{result.skips.total():>9}"
        times = f"{row.seconds:>9.1f}{row.cpu_seconds:>7.0f}{budget:>8}"
        print(f"{row.folder:<14}{counts}{times}{late}")
    num_passed = sum(row.result.num_passed for row in rows)
    num_failed = sum(row.result.num_failed for row in rows)
    num_skipped = sum(row.result.skips.total() for row in rows)
    print(f"\n{num_passed} passed, {num_failed} failed, {num_skipped} skipped")
    late = ", over its budget" if seconds > MAX_SECONDS else ""
    print(f"{seconds:.0f} seconds of {MAX_SECONDS}{late}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
