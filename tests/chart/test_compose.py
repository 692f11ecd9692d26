"""docker-compose.yml tells the services what they understand, and the rest of the files agree."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.cli.up_options import OPENAI_NAMES
from baton.runtime import environment, peer_tls
from services.quota.bootstrap_key import read_bootstrap_key
from tests.chart.rendered import CHART
from tests.chart.test_chart_settings import CLASSES, OTHERS

ROOT = CHART.parents[2]
COMPOSE = ROOT / "deploy" / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = sorted(name for name, service in SERVICES.items() if "environment" in service
              and "BATON_TLS_PLAINTEXT" in service["environment"])  # fmt: skip


def _component(name: str) -> str:
    return name.split("-")[0]


@pytest.mark.parametrize("name", OURS)
def test_each_composed_service_knows_all_that_it_is_told(name: str) -> None:
    told = SERVICES[name]["environment"]
    prefix, cls = CLASSES[_component(name)]
    environment.parse(cls, prefix, told)
    environment.parse(peer_tls.Settings, peer_tls.PREFIX, told)
    known = (prefix, peer_tls.PREFIX)
    assert [key for key in told if not key.startswith(known) and key not in OTHERS] == []


def test_the_demo_model_has_openais_names_unless_they_are_switched_off() -> None:
    value = SERVICES["gateway"]["environment"]["BATON_GATEWAY_ALIASES"]
    names, _, default = value.removeprefix("${").removesuffix("}").partition("-")
    assert names == "BATON_GATEWAY_ALIASES"
    by_name = dict(alias.split("=") for alias in default.split(","))
    assert by_name == dict.fromkeys(OPENAI_NAMES, "baton-demo")
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    (model,) = values["models"].values()
    assert [alias["name"] for alias in model["aliases"]] == list(OPENAI_NAMES)


def test_composed_services_cannot_write_their_root_nor_gain_rights() -> None:
    # The page finds services in a cluster alone.
    assert len(OURS) == len(set(CLASSES) - {"page"}) + 1
    for name in OURS:
        service = SERVICES[name]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_what_is_published_is_published_on_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_files_that_compose_mounts_are_there() -> None:
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    sources = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_redis_has_the_configuration_of_the_chart() -> None:
    (mount,) = [volume for volume in SERVICES["redis"]["volumes"] if volume.startswith("./")]
    source, path, mode = mount.split(":")
    assert ROOT / source == CHART / "files/redis.conf"
    assert (path, mode) == (SERVICES["redis"]["command"][1], "ro")


def test_what_is_waited_for_ends_or_is_there() -> None:
    ended = set()
    for name, service in SERVICES.items():
        awaited = service.get("depends_on", {})
        assert set(awaited) <= set(SERVICES), name
        for other, how in awaited.items() if isinstance(awaited, dict) else ():
            assert how["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"] == "no"
            ended.add(other)
    assert ended


def test_every_named_volume_and_network_is_declared() -> None:
    declared = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = SERVICES.values()
    mounts = [volume.split(":")[0] for one in services for volume in one.get("volumes", ())]
    assert {name for name in mounts if not name.startswith("./")} == set(declared["volumes"])
    joined = [network for one in services for network in one.get("networks", ())]
    assert set(joined) == set(declared["networks"])


def test_prometheus_scrapes_every_composed_service_under_its_component() -> None:
    jobs = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["scrape_configs"]
    groups = [group for job in jobs for group in job["static_configs"]]
    scraped = {t: group["labels"]["component"] for group in groups for t in group["targets"]}
    assert scraped == {f"{name}:9090": _component(name) for name in OURS}


def test_images_that_chart_and_compose_share_have_one_version() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert SERVICES["jaeger"]["image"] == values["tracing"]["jaeger"]["image"]
    assert values["redis"]["image"] in SERVICES["redis"]["image"]


def test_keys_that_compose_makes_are_read_by_quota_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["make_keys.py", str(tmp_path)])
    runpy.run_path(str(COMPOSE / "make_keys.py"), run_name="__main__")
    first = read_bootstrap_key(tmp_path / "api-key", tmp_path / "server-secret")
    runpy.run_path(str(COMPOSE / "make_keys.py"), run_name="__main__")
    assert read_bootstrap_key(tmp_path / "api-key", tmp_path / "server-secret") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["api-key", "server-secret"]
