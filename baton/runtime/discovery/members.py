"""The members of a service, and the settings that name their source."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from baton.runtime.discovery.addresses import is_address

KUBERNETES = "kubernetes:"


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One listed address, "10.0.0.7:7200" or "[::1]:7200".

    The zone has the cluster's name; "" = not known.
    """

    address: str
    zone: str = ""


Found = Callable[[Collection[Member]], None]
# The addresses of a name, IPv4 and IPv6. Raises OSError.
Resolve = Callable[[str], Awaitable[Collection[str]]]


class Discovery(Protocol):
    """A source of members."""

    async def follow(self, found: Found) -> None:
        """Call `found` with all members as soon as they are known, and again when they have
        changed, until cancelled."""


@dataclass(frozen=True, slots=True)
class Target:
    """A setting: "host:port", or "kubernetes:[NAMESPACE/]SERVICE[:PORT]".

    PORT is the name or number of one of the Service's ports; a single one need not be named.
    """

    host: str
    port: str
    is_kubernetes: bool = False
    namespace: str = ""

    @classmethod
    def parse(cls, text: str) -> "Target":
        """The target that a setting names. Raises ValueError."""
        if text.startswith(KUBERNETES):
            service, _, port = text.removeprefix(KUBERNETES).partition(":")
            namespace, _, service = service.rpartition("/")
            if not service or "/" in namespace:
                raise ValueError(f"{text!r} is not {KUBERNETES}[NAMESPACE/]SERVICE[:PORT]")
            return cls(service, port, True, namespace)
        host, _, port = text.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and int(port) < 2**16):
            raise ValueError(f"{text!r} is not host:port")
        return cls(host.removeprefix("[").removesuffix("]"), port)

    @property
    def is_fixed(self) -> bool:
        """True for an IP address."""
        return not self.is_kubernetes and is_address(self.host)


def service_target(endpoint: str) -> str:
    """The target of the Service that "SERVICE[.NAMESPACE[...]]:PORT" names."""
    host, _, port = endpoint.rpartition(":")
    service, _, rest = host.partition(".")
    namespace = rest.partition(".")[0]
    return f"{KUBERNETES}{namespace}{'/' if namespace else ''}{service}:{port}"


def joined(host: str, port: int | str) -> str:
    """The address to dial."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def one_family(hosts: Collection[str]) -> list[str]:
    """The IPv4 addresses, or else all: a member with addresses of both kinds must count once."""
    return [host for host in hosts if ":" not in host] or list(hosts)
