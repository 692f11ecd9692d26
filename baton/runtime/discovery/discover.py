"""Sources of the members of a service: fixed addresses, the addresses of a name, or a Kubernetes
Service's EndpointSlices (kubernetes.py).

A source reports which members are listed, not which are healthy: its reader asks the members
themselves, and one that is no longer listed may still be at work. So a source that cannot be
reached reports nothing, its last report stays, and a cluster without its API server goes on.
"""

import asyncio
import socket
from collections.abc import Collection, Sequence
from random import Random

from baton.runtime import logs
from baton.runtime.discovery.members import (
    Discovery,
    Found,
    Member,
    Resolve,
    Target,
    joined,
    one_family,
)

# Cluster DNS caches a record for 5 s; the system's resolver does not report a time to live.
RESOLVE_S = 5.0
_log = logs.get("discovery")


class FixedMembers:
    """Addresses that never change."""

    def __init__(self, addresses: Collection[str]) -> None:
        self._members = [Member(address) for address in addresses]

    async def follow(self, found: Found) -> None:
        found(self._members)
        await asyncio.Event().wait()


class NamedMembers:
    """Every address of a name, such as a headless Service's; resolved again every RESOLVE_S."""

    def __init__(self, target: Target, random: Random, resolve: Resolve | None = None) -> None:
        self._target = target
        self._random = random
        self._resolve = resolve or resolve_name

    async def follow(self, found: Found) -> None:
        reported: list[Member] | None = None
        logged: str | None = None
        while True:
            try:
                hosts = await self._resolve(self._target.host)
                logged = None
                members = sorted(
                    Member(joined(host, self._target.port)) for host in one_family(hosts)
                )
                if members != reported:
                    reported = members
                    found(members)
            except OSError as error:
                reason = str(error)
                if reason != logged:
                    logged = reason
                    _log.warning("name_not_resolved", name=self._target.host, reason=reason)
            await asyncio.sleep(RESOLVE_S * self._random.uniform(0.8, 1.2))


class AllMembers:
    """The members of several sources together."""

    def __init__(self, sources: Sequence[Discovery]) -> None:
        self._sources = sources

    async def follow(self, found: Found) -> None:
        parts: dict[int, Collection[Member]] = {}

        def found_by(number: int) -> Found:
            def report(members: Collection[Member]) -> None:
                parts[number] = members
                found(sorted({member for part in parts.values() for member in part}))

            return report

        async with asyncio.TaskGroup() as tasks:
            for number, source in enumerate(self._sources):
                tasks.create_task(source.follow(found_by(number)))


async def discover(targets: Sequence[str], random: Random) -> Discovery:
    """Make the source of the members that the targets name (Target.parse).

    Raises ValueError for a malformed target; SettingsError for Kubernetes without its client or
    without a cluster.
    """
    parsed = [Target.parse(text) for text in targets]
    fixed = [joined(target.host, target.port) for target in parsed if target.is_fixed]
    sources: list[Discovery] = [FixedMembers(fixed)] if fixed or not parsed else []
    for target in parsed:
        if target.is_kubernetes:
            # The client is installed only where a target needs it.
            from baton.runtime.discovery.kubernetes import EndpointSlices, connect

            sources.append(EndpointSlices(await connect(), target, random))
        elif not target.is_fixed:
            sources.append(NamedMembers(target, random))
    return sources[0] if len(sources) == 1 else AllMembers(sources)


async def resolve_name(name: str) -> set[str]:
    """The addresses of a name, by the system's resolver. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}
