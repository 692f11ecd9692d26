"""Collects the processes of a local stack, with their ports and common settings."""

import sys
from collections.abc import Mapping

from baton.localstack.home import Home
from baton.localstack.ports import LOOPBACK, is_free
from baton.localstack.supervisor import ServiceSpec

_NUM_PORTS = 2**16


class Builder:
    """Collects services; hands out ports and each one's common settings."""

    def __init__(self, home: Home, spans_endpoint: str, ports: list[int]) -> None:
        self.home = home
        self.spans_endpoint = spans_endpoint
        self._ports = ports
        self._drawn = frozenset(ports)
        self.services: list[ServiceSpec] = []

    def next_port(self) -> int:
        return self._ports.pop()

    def port_after(self, port: int) -> int:
        """The port after this one, if nothing has it; else any free one."""
        beside = port + 1
        is_usable = beside < _NUM_PORTS and beside not in self._drawn and is_free(beside)
        return beside if is_usable else self.next_port()

    def add(
        self,
        name: str,
        module: str,
        stop_rank: int,
        settings: dict[str, str],
        port: int = 0,
        more: Mapping[str, str] | None = None,
    ) -> str:
        """Add one of our services; returns its endpoint. A variable is `prefix` and a key. `more`:
        variables that are not Baton's."""
        prefix = settings.pop("prefix")
        endpoint = f"{LOOPBACK}:{port or self.next_port()}"
        admin = f"{LOOPBACK}:{self.next_port()}"
        settings = {"listen": endpoint, "admin_listen": admin, **settings}
        environment = {f"{prefix}{key}".upper(): value for key, value in settings.items()}
        environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": self.spans_endpoint, **(more or {})}
        self.services.append(
            ServiceSpec(
                name,
                [sys.executable, "-m", module],
                environment,
                stop_rank,
                endpoint,
                f"http://{admin}/metrics",
            )
        )
        return endpoint
