"""The gateways of the settings, each polled at /readyz.

An entry is an address, a name whose every address is a gateway (such as a headless Service's), or a
Kubernetes Service whose endpoints, with their zones, are watched (baton/runtime/discovery).
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from baton.runtime import logs
from baton.runtime.discovery import members as listed
from baton.runtime.discovery.addresses import host_and_port
from baton.runtime.http_call import NoAnswer, TlsServer, call
from services.edge.discovery import Found, GatewayReplica, GatewayState, Location

_ASK_TIMEOUT_S = 2.0
_MAX_ASKED_AT_ONCE = 64
# A busy gateway may miss one answer.
_MISSES_UNTIL_UNREADY = 2
_READY_PATH = "/readyz"

_log = logs.get("discovery")

Address = tuple[str, int]
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Asks a gateway for its state; None = no answer.
Ask = Callable[[str, int], Awaitable[GatewayState | None]]


@dataclass(frozen=True, slots=True)
class NamedGateway:
    """One entry of the settings."""

    host: str
    port: int
    location: Location

    @classmethod
    def parse(cls, text: str) -> "NamedGateway":
        """Parse host:port or host:port@region/zone. Raises ValueError."""
        endpoint, _, location = text.partition("@")
        region, _, zone = location.partition("/")
        host, port = host_and_port(endpoint)
        return cls(host, port, Location(region, zone))


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


async def ask(address: str, port: int, tls: TlsServer | None = None) -> GatewayState | None:
    """Ask a gateway for its state; None = no answer."""
    try:
        status, body = await call((address, port), _READY_PATH, timeout_s=_ASK_TIMEOUT_S, tls=tls)
    except NoAnswer:
        return None
    if status == 200:
        return GatewayState.READY
    return GatewayState.DRAINING if "draining" in _reasons(body) else GatewayState.UNREADY


@dataclass(frozen=True, slots=True)
class ListedGateways:
    """The endpoints of a Kubernetes Service, all in one region."""

    source: listed.Discovery
    region: str


class PolledGateways:
    """A Discovery over named and listed gateways."""

    def __init__(
        self,
        named: Sequence[NamedGateway],
        poll_s: float,
        resolve: Resolve = resolve,
        ask: Ask = ask,
        listed: Sequence[ListedGateways] = (),
    ) -> None:
        self._poll_s = poll_s
        self._resolve = resolve
        self._ask = ask
        self._limit = asyncio.Semaphore(_MAX_ASKED_AT_ONCE)
        # The last addresses of each name: one that cannot be resolved keeps them.
        self._addresses: dict[NamedGateway, list[str]] = {entry: [] for entry in named}
        self._listed = listed
        # The last report of each listed source.
        self._locations: dict[ListedGateways, dict[Address, Location]] = {}
        self._states: dict[Address, GatewayState] = {}
        self._num_misses: dict[Address, int] = {}

    async def follow(self, found: Found) -> None:
        async with asyncio.TaskGroup() as tasks:
            for entry in self._listed:
                tasks.create_task(entry.source.follow(partial(self._list, entry)))
            has_found = False
            while True:
                replicas = await self.poll()
                # Nothing is known until a name is resolved. A new control plane does not rely on
                # one missed answer either: Envoys still have the configuration of the last one.
                if replicas and (has_found or self._is_sure()):
                    has_found = True
                    found(replicas)
                await asyncio.sleep(self._poll_s)

    def _is_sure(self) -> bool:
        return not any(0 < misses < _MISSES_UNTIL_UNREADY for misses in self._num_misses.values())

    def _list(self, entry: ListedGateways, members: Collection[listed.Member]) -> None:
        self._locations[entry] = {
            host_and_port(member.address): Location(entry.region, member.zone) for member in members
        }

    async def poll(self) -> list[GatewayReplica]:
        """Resolve all names and ask all gateways once."""
        await asyncio.gather(*map(self._look_up, self._addresses))
        locations = {
            (address, entry.port): entry.location
            for entry, addresses in self._addresses.items()
            for address in addresses
        }
        for found in self._locations.values():
            locations |= found
        states = await asyncio.gather(*map(self._state_of, locations))
        self._states = dict(zip(locations, states, strict=True))
        self._num_misses = {key: self._num_misses.get(key, 0) for key in locations}
        return [
            GatewayReplica(*key, location, self._states[key]) for key, location in locations.items()
        ]

    async def _look_up(self, entry: NamedGateway) -> None:
        try:
            self._addresses[entry] = await self._resolve(entry.host, entry.port)
        except OSError as error:
            _log.warning("name_not_resolved", host=entry.host, error=str(error)[:200])

    async def _state_of(self, key: Address) -> GatewayState:
        async with self._limit:
            state = await self._ask(*key)
        if state is not None:
            self._num_misses[key] = 0
            return state
        self._num_misses[key] = self._num_misses.get(key, 0) + 1
        if self._num_misses[key] >= _MISSES_UNTIL_UNREADY:
            return GatewayState.UNREADY
        return self._states.get(key, GatewayState.UNREADY)


def _reasons(body: bytes) -> list[str]:
    try:
        reasons = json.loads(body)["reasons"]
    except (ValueError, KeyError, TypeError):
        return []
    return reasons if isinstance(reasons, list) else []
