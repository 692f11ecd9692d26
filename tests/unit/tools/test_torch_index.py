"""`tools/torch_index.sh`: where torch comes from, with a Python and a driver that are stand-ins."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Its pip says $PIP_SAYS and then more than a pipe holds, and ends with $PIP_ENDS; it reaches what
# it is asked to open unless $IS_AWAY.
PYTHON = """#!/bin/sh
case "$*" in
*"pip config list")
    echo "$PIP_SAYS"
    for _ in $(seq 9999); do echo "global.timeout='9'"; done
    exit ${PIP_ENDS:-0}
    ;;
*urlopen*) [ -z "$IS_AWAY" ] && echo "$*" >>"$OPENED" ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder that holds a Python, and what the script itself calls."""
    for name in ("bash", "uname", "grep", "env", "seq"):
        found = next(
            Path(part, name) for part in os.environ["PATH"].split(":") if Path(part, name).exists()
        )
        (tmp_path / name).symlink_to(found)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def index(programs: Path, **variables: str) -> str:
    """What the script prints; its path has those programs alone."""
    env = {"PATH": str(programs), "OPENED": str(programs / "opened"), "PIP_SAYS": "", **variables}
    command = [ROOT / "tools/torch_index.sh", programs / "python"]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_without_a_driver_it_is_the_index_of_cpu_builds(programs: Path) -> None:
    found = index(programs)
    if Path("/proc/driver/nvidia").exists():
        assert found == ""
    else:
        assert found.endswith("/cpu")
        assert f"{found}/torch/" in (programs / "opened").read_text()


def test_the_variable_decides(programs: Path) -> None:
    url = "https://example.com/cpu"
    assert index(programs, TORCH_INDEX_URL=url, IS_AWAY="yes") == url
    assert not (programs / "opened").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"IS_AWAY": "yes"},
        {"PIP_SAYS": "global.index-url='https://example.com/simple'"},
        {"PIP_ENDS": "1"},
    ],
    ids=["away", "pip has an index", "pip fails"],
)
def test_otherwise_pip_looks_where_it_does(programs: Path, variables: dict[str, str]) -> None:
    assert index(programs, **variables) == ""


def test_with_a_driver_pip_looks_where_it_does(programs: Path) -> None:
    (programs / "nvidia-smi").symlink_to("/bin/true")
    assert index(programs) == ""
    assert not (programs / "opened").exists()
