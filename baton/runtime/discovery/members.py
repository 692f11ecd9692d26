"""The members of a service, and the setting that names where they are listed."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from baton.runtime.discovery.addresses import is_address

KUBERNETES = "kubernetes:"


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One listed address, "10.0.0.7:7200" or "[::1]:7200"; zone as the cluster names it, "" = not
    known."""

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
    """What a setting says: "host:port", or "kubernetes:[NAMESPACE/]SERVICE[:PORT]" where PORT is
    the name or number of one of its ports, and may be left out when there is only one."""

    host: str
    port: str
    is_kubernetes: bool = False
    namespace: str = ""

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Raises ValueError."""
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
        """An IP address."""
        return not self.is_kubernetes and is_address(self.host)


def joined(host: str, port: int | str) -> str:
    """As one dials it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def one_family(hosts: Collection[str]) -> list[str]:
    """IPv4 addresses, or if there is none the others: a member with both must not count twice."""
    return [host for host in hosts if ":" not in host] or list(hosts)
