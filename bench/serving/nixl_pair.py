"""The pair of vLLM's own servers that hand blocks over by NIXL, as `servers.py` starts it."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from baton.localstack.ports import LOOPBACK, free_ports
from bench.contenders import Parity, clean_environment, vllm_environment, vllm_python

NIXL_PAIR = "vllm, NIXL 1P1D"
_PROGRAM = Path(__file__).parents[1] / "peers/nixl_serve.py"
_CONNECTOR = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}


def nixl_folder() -> str:
    """The folder with NIXL in Baton's own environment; empty where it has none."""
    spec = importlib.util.find_spec("nixl_cu12")
    return str(Path(spec.origin).parents[1]) if spec and spec.origin else ""


def link_nixl(folder: Path) -> Path:
    """Make a folder, for PYTHONPATH, with NIXL and nothing else."""
    links = folder / "nixl"
    if not links.exists():
        links.mkdir()
        for path in Path(nixl_folder()).glob("nixl_cu12*"):
            (links / path.name).symlink_to(path)
    return links


def pair_command(port: int, words: list[str], parity: Parity, folder: Path) -> list[str]:
    """The command of the proxy with both servers; `words` are those of `vllm serve`.

    Each server has a half of the threads.
    """
    num_threads = str(max(1, parity.num_threads // 2))
    servers = []
    for server_port, channel in zip(free_ports(2), free_ports(2), strict=True):
        environment: dict[str, Any] = {**clean_environment(), **vllm_environment(parity)}
        # vLLM would bind the engines of both servers to one core.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        environment["OMP_NUM_THREADS"] = num_threads
        environment["PYTHONPATH"] = str(link_nixl(folder))
        environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = LOOPBACK
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(channel)
        # As between hosts, and in the comparison of the connectors.
        environment["UCX_TLS"] = "tcp"
        argv = [str(vllm_python()), str(_PROGRAM), *words, "--port", str(server_port)]
        argv += ["--kv-transfer-config", json.dumps(_CONNECTOR)]
        servers.append({"argv": argv, "environment": environment, "port": server_port})
    options = json.dumps({"servers": servers, "port": port})
    return [sys.executable, "-m", "bench.peers.nixl_proxy", options]
