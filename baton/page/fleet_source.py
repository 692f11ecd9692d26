"""The processes of a fleet, as a page about it needs to know them, and where they come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

WORKER_ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Service:
    """One process: of a local stack by its name there, in a cluster by that of its pod."""

    name: str
    # gateway, quota, prefill, decode, ...: the service that it is a replica of.
    role: str
    # Empty = it has no page of metrics.
    metrics_url: str = ""
    # Address of its gRPC port.
    endpoint: str = ""
    # What its supervisor or the cluster says, not what it answers itself.
    is_running: bool = True
    # 0 = not known.
    started_unix_s: float = 0.0
    num_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The processes of one stack or release; `title` is how people call it."""

    title: str
    services: Sequence[Service]
    is_ready: bool = True
    is_stopping: bool = False


class FleetSource(Protocol):
    """Where a fleet's processes are listed."""

    def fleet(self) -> Fleet | None:
        """The fleet as it is now; None when there is none, or none is known. May block."""
