from pathlib import Path

import pytest

from baton.system.cores import num_available_cores


@pytest.mark.parametrize(("text", "num_cores"), [("50000 100000", 1), ("100000 100000", 1)])
def test_a_quota_of_the_control_group_limits_the_cores(
    tmp_path: Path, text: str, num_cores: int
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert num_available_cores(tmp_path / "cpu.max") == num_cores


def test_without_a_quota_there_is_at_least_one_core(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert num_available_cores(tmp_path / "cpu.max") >= 1
    assert num_available_cores(tmp_path / "missing") >= 1
