"""`tools/kind.sh`: the order of what it does, with programs that only note how they were called."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = '#!/bin/sh\necho "$(basename "$0") $*" >>"$CALLS"\n'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name in ("kind", "kubectl", "helm", "docker"):
        path = tmp_path / name
        path.write_text(PROGRAM)
        path.chmod(0o755)
    # The script that builds images asks for an image's size.
    (tmp_path / "docker").write_text(PROGRAM + "case $2 in inspect) echo 1 ;; esac\n")
    return tmp_path


def run_script(programs: Path, *options: str, **more: str) -> tuple[int, list[str], str]:
    calls = programs / "calls"
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls), **more}
    command = ["tools/kind.sh", *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode, calls.read_text().splitlines(), done.stdout


def test_a_cluster_is_made_filled_installed_and_tested(programs: Path) -> None:
    code, calls, said = run_script(programs, "--set", "logLevel=DEBUG", TAG="1.2.3")
    assert code == 0
    firsts = [" ".join(call.split()[:2]) for call in calls]
    order = ["kind get", "kind create", "docker build", "kind load", "helm upgrade", "helm test"]
    assert sorted(order, key=firsts.index) == order
    loaded = {call.split()[-1] for call in calls if call.startswith("kind load")}
    built = {call.split()[3] for call in calls if call.startswith("docker build")}
    assert loaded == built
    (install,) = [call for call in calls if call.startswith("helm upgrade")]
    assert "image.registry=localhost" in install
    assert install.endswith("--set logLevel=DEBUG")
    assert "port-forward svc/baton-envoy" in said


def test_published_images_are_pulled_and_another_cluster_is_left_as_it_is(programs: Path) -> None:
    code, calls, _ = run_script(programs, CLUSTER="none", REGISTRY="host/team")
    assert code == 0
    assert [call.split()[0] for call in calls] == ["helm", "helm"]
    assert "image.registry=host/team" in calls[0]
