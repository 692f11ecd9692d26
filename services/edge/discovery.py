"""Which gateways there are, where, and what each would do with a new request: what a source of them
must tell. Knows neither Envoy nor where the knowledge comes from.

`polled_gateways.py` asks gateways that are named in the settings; another source is another class
with `follow`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Region and zone, as the cloud or the cluster names them; empty = not known."""

    region: str = ""
    zone: str = ""


class GatewayState(Enum):
    """What a gateway says of itself, or what is said of it."""

    READY = "ready"
    # Listed and counted, so that "too few are healthy" can be seen, but given no request.
    UNREADY = "unready"
    # On its way out: what runs there ends there, nothing new begins.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class GatewayReplica:
    """One gateway: an IP address, never a name."""

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

        A source that cannot be reached says nothing: an empty list means that there are none. The
        order of the list does not matter, and a repeated list costs nothing.
        """
        ...
