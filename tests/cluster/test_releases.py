"""What Helm does to a release under load, a second release, and what is left in the end."""

import json
import re
import time
from pathlib import Path

import pytest

from tests.cluster.release import CHART, Release
from tests.cluster.table import Row

# As long as a person would watch a rollout that does not go on.
WATCHED_S = 20
BROKEN = {"source": {"volume": {"claim": "is-not-there"}}, "sizeGiB": 0.01}
SMALL = ("-f", str(CHART / "ci/minimal-values.yaml"))
WITHOUT_VOLUMES = ("--set", "redis.persistence.size=", "--set", "quota.usage.size=")


def test_no_client_notices_an_upgrade_that_restarts_everything(release: Release) -> None:
    def upgrade() -> None:
        release.upgrade("--set", "pods.annotations.version=two")

    release.case("`helm upgrade` that restarts everything", upgrade)


def test_no_client_notices_a_rollback(release: Release) -> None:
    release.upgrade("--set", "poolDefaults.settings.max_batch=5")

    def roll_back() -> None:
        release.namespace.helm("rollback", release.name, "--wait", "--timeout=10m")

    release.case("`helm rollback` of both pools", roll_back)


def test_no_client_notices_that_pools_and_services_are_scaled(release: Release) -> None:
    def scale() -> None:
        release.upgrade("--set", "gateway.replicas=3", "--set", "tokenizer.replicas=1")
        release.upgrade()

    release.case("`helm upgrade` to more gateways and fewer tokenizers, and back", scale)


def test_no_client_notices_a_model_that_is_not_there(release: Release, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps({"models": {"broken": BROKEN}}))

    def add() -> None:
        options = ("--reset-values", *release.images(), "-f", str(values))
        release.namespace.helm("upgrade", release.name, str(CHART), *options)
        time.sleep(WATCHED_S)
        release.namespace.helm("rollback", release.name, "--wait", "--timeout=10m")

    release.case("a model whose claim does not exist, and `helm rollback`", add)


def test_a_second_release_lives_in_another_namespace(release: Release) -> None:
    other = Release("baton-other", "other")
    other.prepare()
    try:
        other.install(*SMALL, *WITHOUT_VOLUMES)
        out = other.namespace.helm("test", other.name, "--logs")
        assert re.search(r"\d+ pieces of text", out)
        assert other.api_key() != release.api_key()
    finally:
        other.forget()


@pytest.mark.parametrize("profile", ["trial", "minimal"])
def test_a_profile_for_small_nodes_installs_and_answers(
    images: None, rows: list[Row], profile: str
) -> None:
    small = Release("baton-other")
    small.rows = rows
    small.prepare()
    try:
        seconds = small.install("-f", str(CHART / f"ci/{profile}-values.yaml"))
        rows.append(
            Row(f"`helm install`, profile `{profile}`", 1, 0, 0, 0, f"ready after {seconds:.0f} s")
        )
        small.learn(f"undisturbed, profile `{profile}`")
        out = small.namespace.helm("test", small.name, "--logs")
        assert re.search(r"\d+ pieces of text", out)
    finally:
        small.forget()


def test_uninstalling_leaves_keys_and_volumes_and_nothing_that_runs(images: None) -> None:
    """Of a release of its own: the other tests need theirs."""
    short = Release("baton-other")
    short.prepare()
    try:
        short.install(*SMALL)
        key = short.api_key()
        short.namespace.helm("uninstall", short.name, "--wait")
        assert short.namespace.kubectl("get", "deploy,statefulset,service,job", "-o", "name") == ""
        claims = short.namespace.kubectl("get", "pvc", "-o", "name").split()
        assert [name.partition("/")[2] for name in claims] == [
            "data-baton-redis-0",
            "usage-baton-quota-0",
        ]
        assert short.api_key() == key
    finally:
        short.forget()
