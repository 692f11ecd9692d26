"""The gateways, with their location and state, and the protocol of a source of them.

`polled_gateways.py` polls the gateways in the settings; another source is another class with
`follow`. Knows neither Envoy nor the sources.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Region and zone, as the cloud or the cluster names them; empty = not known."""

    region: str = ""
    zone: str = ""


class GatewayState(StrEnum):
    """The state of a gateway, as it reports it or as a missing answer implies it."""

    READY = "ready"
    # Listed and counted, so that "too few are healthy" can be seen, but given no request.
    UNREADY = "unready"
    # Open requests end there, and no new one begins.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class GatewayReplica:
    """One gateway. Its address is an IP address, never a name."""

    address: str
    port: int
    location: Location
    state: GatewayState


Found = Callable[[Sequence[GatewayReplica]], None]


class Discovery(Protocol):
    """A source of gateways."""

    async def follow(self, found: Found) -> None:
        """Call `found` with all gateways as soon as they are known, and again whenever something
        may have changed, until cancelled.

        A source that cannot be reached reports nothing: an empty list means that there is no
        gateway. The order of the list does not matter, and a repeated list costs nothing.
        """
        ...
