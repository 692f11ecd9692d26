"""Where the members of a service are: fixed addresses, the addresses of a name, or a Kubernetes
Service's EndpointSlices (kubernetes_discovery.py).

A source tells who is listed, not who is well: its reader asks the members themselves, and one that
is listed no longer may still be at work. So a source that cannot be reached says nothing, what it
said last stays, and a cluster whose API server is away goes on as it was.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from baton.runtime import logs
from baton.runtime.addresses import is_address

KUBERNETES = "kubernetes:"
# Cluster DNS keeps a record for 5 s; the system's resolver tells no time to live.
RESOLVE_S = 5.0
_log = logs.get("discovery")


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


class FixedMembers:
    """Addresses that never change."""

    def __init__(self, addresses: Collection[str]) -> None:
        self._members = [Member(address) for address in addresses]

    async def follow(self, found: Found) -> None:
        found(self._members)
        await asyncio.Event().wait()


class NamedMembers:
    """Every address of a name, as of a headless Service; asked again all RESOLVE_S."""

    def __init__(self, target: Target, random: Random, resolve: Resolve | None = None) -> None:
        self._target = target
        self._random = random
        self._resolve = resolve or resolve_name

    async def follow(self, found: Found) -> None:
        told: list[Member] | None = None
        failure = ""
        while True:
            try:
                hosts = await self._resolve(self._target.host)
                failure = ""
                members = sorted(
                    Member(joined(host, self._target.port)) for host in one_family(hosts)
                )
                if members != told:
                    told = members
                    found(members)
            except OSError as error:
                if failure != (failure := str(error)):
                    _log.warning("name_not_resolved", name=self._target.host, reason=failure)
            await asyncio.sleep(RESOLVE_S * self._random.uniform(0.8, 1.2))


class AllMembers:
    """The members of several sources together."""

    def __init__(self, sources: Sequence[Discovery]) -> None:
        self._sources = sources

    async def follow(self, found: Found) -> None:
        parts: dict[int, Collection[Member]] = {}

        def found_by(number: int) -> Found:
            def tell(members: Collection[Member]) -> None:
                parts[number] = members
                found(sorted({member for part in parts.values() for member in part}))

            return tell

        async with asyncio.TaskGroup() as tasks:
            for number, source in enumerate(self._sources):
                tasks.create_task(source.follow(found_by(number)))


async def discover(targets: Sequence[str], random: Random) -> Discovery:
    """The source that the targets name (Target.parse).

    Raises ValueError for a malformed target; SettingsError for Kubernetes without its client or
    without a cluster.
    """
    parsed = [Target.parse(text) for text in targets]
    fixed = [joined(target.host, target.port) for target in parsed if target.is_fixed]
    sources: list[Discovery] = [FixedMembers(fixed)] if fixed or not parsed else []
    for target in parsed:
        if target.is_kubernetes:
            # Needed, and installed, only where a target says so.
            from baton.runtime.kubernetes_discovery import EndpointSlices, connect

            sources.append(EndpointSlices(await connect(), target, random))
        elif not target.is_fixed:
            sources.append(NamedMembers(target, random))
    return sources[0] if len(sources) == 1 else AllMembers(sources)


def one_family(hosts: Collection[str]) -> list[str]:
    """IPv4 addresses, or if there is none the others: a member with both must not count twice."""
    return [host for host in hosts if ":" not in host] or list(hosts)


async def resolve_name(name: str) -> set[str]:
    """By the system's resolver. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}
