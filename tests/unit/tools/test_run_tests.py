"""What `make test` runs, and which skips it takes, read from what pytest itself reports."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import needs
from tools.run_tests import (
    BESIDE,
    CPU_SECONDS,
    FIRST,
    LOW_PRIORITY,
    MAX_SECONDS,
    WAITING,
    may_skip,
    read,
    step_aside,
)

SOURCES = {
    "test_file.py": """
        import pytest
        pytest.importorskip("no_such_package", reason="needs it: tools/setup.sh")
        def test_it(): ...
    """,
    "test_some.py": """
        import pytest
        @pytest.mark.skipif(True, reason="needs a GPU")
        @pytest.mark.parametrize("number", [1, 2])
        def test_on_a_gpu(number): ...
        def test_on_amx(): pytest.skip("needs a CPU with amx")
        def test_that_passes(): ...
        def test_that_fails(): assert False
        def test_with_an_error(nothing): ...
    """,
}


def test_a_report_is_read_with_the_reason_of_each_skip(tmp_path: Path) -> None:
    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source.replace("\n        ", "\n"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=False)

    result = read(report)

    assert (result.num_passed, result.num_failed) == (1, 2)
    reasons = {"needs it: tools/setup.sh": 1, "needs a GPU": 2, "needs a CPU with amx": 1}
    assert result.skips == reasons


def test_a_run_without_a_report_has_failed(tmp_path: Path) -> None:
    assert read(tmp_path / "none.xml").num_failed == 1


def test_in_ci_only_hardware_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware = Counter([needs.GPU, needs.cpu_with("amx")])
    skips = hardware + Counter([needs.NIXL])

    monkeypatch.setenv("BATON_APT", "1")
    assert may_skip(hardware)
    assert not may_skip(skips)
    assert f"1 not allowed in CI: {needs.NIXL}" in capsys.readouterr().out

    monkeypatch.delenv("BATON_APT")
    assert may_skip(skips)
    assert f"1 skipped: {needs.NIXL}" in capsys.readouterr().out


def test_each_folder_with_a_budget_runs_once_and_two_cores_have_that_time() -> None:
    assert sorted([*FIRST, *WAITING, *BESIDE]) == sorted(CPU_SECONDS)
    assert sum(CPU_SECONDS.values()) <= 2 * MAX_SECONDS


def test_what_runs_beside_others_leaves_the_processors_to_them() -> None:
    shown = subprocess.run(["nice"], preexec_fn=step_aside, capture_output=True, check=True)
    assert int(shown.stdout) == min(os.nice(0) + LOW_PRIORITY, 19)
