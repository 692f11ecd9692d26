"""`tools/images.sh`: what it asks the engine for, and the budgets that it holds images to."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Notes how it was called, one line each, and calls every image so large.
ENGINE = """#!/bin/sh
echo "$*" >>"$CALLS"
case $2 in inspect) echo "$NUM_BYTES" ;; esac
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "engine"
    path.write_text(ENGINE)
    path.chmod(0o755)
    return path


def run_script(
    engine: Path, *command: str, megabytes: int = 1, **more: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it with the engine; returns what became of it, and the calls of the engine."""
    calls = engine.with_name("calls")
    given = {"ENGINE": str(engine), "CALLS": str(calls), "NUM_BYTES": str(megabytes * 10**6)}
    env = {"PATH": os.environ["PATH"], "REGISTRY": "host/team", "TAG": "1.2.3", **given, **more}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_without_names_all_images_of_a_release_but_the_large_ones_are_built(engine: Path) -> None:
    done, calls = run_script(engine, "tools/images.sh")
    assert done.returncode == 0, done.stderr
    built = {call.split()[2] for call in calls if call.startswith("build ")}
    names = ["gateway", "quota", "tokenizer", "router", "edge", "envoy", "worker", "loadtest"]
    assert built == {f"host/team/baton-{name}:1.2.3" for name in names}


@pytest.mark.parametrize(
    ("name", "tag", "index", "extra"),
    [
        ("worker-cuda", "1.2.3", "whl/cu130", "nixl-cu13"),
        ("worker-cuda-cu129", "1.2.3-cu129", "whl/cu129", "nixl"),
    ],
)
def test_each_oldest_driver_has_a_tag_of_the_cuda_worker(
    engine: Path, name: str, tag: str, index: str, extra: str
) -> None:
    done, (build, *_) = run_script(engine, "tools/images.sh", name)
    assert done.returncode == 0, done.stderr
    assert f"--tag host/team/baton-worker-cuda:{tag} " in build
    assert index in build
    assert f"EXTRAS=worker,{extra}," in build
    assert "deploy/docker/worker.Dockerfile" in build


def test_the_nixl_of_vllms_image_is_that_of_its_cuda_unless_it_is_named(engine: Path) -> None:
    for named, expected in (({}, "nixl-cu13"), ({"VLLM_NIXL": "nixl-cu12"}, "nixl-cu12")):
        done, calls = run_script(engine, "tools/images.sh", "worker-vllm-cuda", **named)
        assert done.returncode == 0, done.stderr
        assert f"--build-arg NIXL={expected} " in [c for c in calls if c.startswith("build ")][-1]


def test_an_image_above_its_budget_is_not_pushed(engine: Path) -> None:
    done, calls = run_script(engine, "tools/images.sh", "quota", megabytes=900, PUSH="1")
    assert done.returncode == 1
    assert "is larger than its budget" in done.stderr
    assert not [call for call in calls if call.startswith("push ")]
    done, calls = run_script(engine, "tools/images.sh", "quota", megabytes=200, PUSH="1")
    assert done.returncode == 0
    assert calls[-1] == "push host/team/baton-quota:1.2.3"
