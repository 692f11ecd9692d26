"""The chart on a real Kubernetes: `make test-cluster`. Not part of `make test`.

KUBECONFIG   as kubectl reads it; the suite makes namespaces of its own, and volumes
LOAD         a command that brings images in: "kind load docker-image"
NODE         a command that runs another one on the node as root: "docker exec kind-control-plane"
REGISTRY, TAG   of the images; localhost and the chart's version by default
EACH         how often each rollout is made
VALUES       more options of `helm install`, for what this cluster lacks
KEEP         leave the release for the next run, which takes it as it is
INTO         the page whose table gets the rows
"""

import os
import shlex
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

# Before its first import, so that failures tell the difference.
pytest.register_assert_rewrite("tests.cluster.release")

from tests.cluster.release import SERVICES, Release, image  # noqa: E402
from tests.cluster.table import HEAD, Row, line, write  # noqa: E402
from tests.kit.kube.real_cluster import run  # noqa: E402

TEST_TIMEOUT_S = 1800
# `pytest` alone must find no cluster by accident.
collect_ignore_glob = [] if "BATON_TEST_CLUSTER" in os.environ else ["test_*.py"]
_rows: list[Row] = []


@pytest.fixture(scope="session")
def images() -> None:
    """The images are on the node."""
    if load := os.environ.get("LOAD"):
        run(*shlex.split(load), *map(image, SERVICES), timeout_s=1800)


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    """The table of this run."""
    return _rows


@pytest.fixture(scope="session")
def release(images: None) -> Iterator[Release]:
    """The chart with its default values."""
    keep = "KEEP" in os.environ
    release = Release("baton-try")
    release.rows = _rows
    if not (keep and release.is_there()):
        release.prepare()
        seconds = f"ready after {release.install():.0f} s"
        _rows.append(Row("`helm install`, default values", 1, 0, 0, 0, seconds))
    release.learn()
    yield release
    if not keep:
        release.forget()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if "tests/cluster" in item.path.as_posix()]
    for item in own:
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
    if own == items:
        # Releases that come and go are first: a node of two cores has no room for two.
        items.sort(key=lambda item: "release" in getattr(item, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _rows:
        terminalreporter.section("cluster")
        for cells in (HEAD, *map(astuple, _rows)):
            terminalreporter.write_line(line(cells))
    if _rows and (page := os.environ.get("INTO")):
        write(Path(page), _rows)
