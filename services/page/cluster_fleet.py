"""The pods of a release as the page's fleet, from the EndpointSlices of its Services.

A slice says which pods there are and where; its labels are those of its Service, which has the
component's name. How a pod is, its own port says. Of a pod that has no address yet nothing is
known here.
"""

from collections.abc import Collection

from baton.page.fleet_source import Fleet, Service
from baton.runtime.discovery.kubernetes import Endpoint, Slice, port_number
from baton.runtime.discovery.members import joined

RELEASE_LABEL = "app.kubernetes.io/instance"
_COMPONENT = "app.kubernetes.io/component"
_METRICS = "/metrics"
# The path of each component's port that is read. Envoy's own page of metrics is long, and nothing
# in it is shown: it is only asked whether it is there. Others have no such port.
_PATHS = {
    "gateway": _METRICS, "quota": _METRICS, "tokenizer": _METRICS, "router": _METRICS,
    "prefill": _METRICS, "decode": _METRICS, "edge": _METRICS, "envoy": "/ready",
    "redis": "", "jaeger": "", "page": _METRICS,
}  # fmt: skip


class ClusterFleet:
    """The fleet as the last report of the slices had it."""

    def __init__(self, title: str, port: int) -> None:
        self._title = title
        self._port = port
        self._fleet: Fleet | None = None

    def found(self, slices: Collection[Slice]) -> None:
        """Take a report."""
        self._fleet = Fleet(self._title, services_of(slices, self._port))

    def fleet(self) -> Fleet | None:
        return self._fleet


def services_of(slices: Collection[Slice], port: int) -> list[Service]:
    """The pods of the components that are shown, by component and name; each once, though several
    Services may lead to it."""
    found: dict[str, Service] = {}
    for part in slices:
        role = (part.metadata.labels or {}).get(_COMPONENT, "")
        if role not in _PATHS or part.address_type not in ("IPv4", "IPv6"):
            continue
        grpc_port = port_number(part.ports or (), "grpc")
        for endpoint in part.endpoints or ():
            service = _service(endpoint, role, port, grpc_port)
            # IPv4 before IPv6, as everywhere; and not the Service that does not lead to gRPC.
            if service.name not in found or (grpc_port and part.address_type == "IPv4"):
                found[service.name] = service
    order = list(_PATHS)
    return sorted(found.values(), key=lambda each: (order.index(each.role), each.name))


def _service(endpoint: Endpoint, role: str, port: int, grpc_port: int | None) -> Service:
    address = endpoint.addresses[0]
    name = endpoint.target_ref.name if endpoint.target_ref else ""
    path = _PATHS[role]
    return Service(
        name=name or address,
        role=role,
        metrics_url=f"http://{joined(address, port)}{path}" if path else "",
        endpoint=joined(address, grpc_port) if grpc_port else "",
        # Of those without a port of ours, readiness is all that is known.
        is_running=bool(path) or endpoint.conditions is None or endpoint.conditions.ready is True,
    )
