"""EndpointSlices of Kubernetes by list and watch, and the members of a Service from them.

List, then watch from the list's version on. A watch that ends, breaks or is silent goes on from the
version of the last event or bookmark. After a watch that is refused or not understood the slices
are listed again: the API server has forgotten that version (410), has none that high because it was
restored from a backup (504), or would answer the same again. Every pause is jittered and grows to
MAX_BACKOFF_S. Known members stay until newer ones are known: an API server that is away changes
nothing. Endpoints are listed whether ready or not, because a worker that drains is still at work
and each member is asked for its own readiness.

The official client talks to the API server; its Watch is not used, because it hides the first 410
and a broken stream. Needs the extra `kubernetes`. API: kubernetes.io/docs/reference/using-api/
api-concepts (efficient detection of changes) and EndpointSlice, discovery.k8s.io/v1.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec

from baton.runtime import logs
from baton.runtime.discovery.members import Found, Member, Target, joined, one_family
from baton.runtime.environment import SettingsError

try:
    import aiohttp
    from kubernetes.aio import client, config
except ImportError:
    raise SettingsError("discovery by Kubernetes needs the extra 'kubernetes'") from None

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 30.0
LIST_TIMEOUT_S = 15.0
# After this time the server ends a watch, and the next one may reach another API server behind the
# balancer.
WATCH_S = 300
# A watch that is silent for longer may be dead, and another one is asked for. Most servers have a
# bookmark each minute, but none while nothing changes if their etcd tells no progress.
SILENCE_S = 150.0
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_log = logs.get("discovery.kubernetes")


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class Conditions(msgspec.Struct):
    ready: bool | None = None


class TargetRef(msgspec.Struct):
    name: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    addresses: Annotated[list[str], msgspec.Meta(min_length=1)]
    zone: str | None = None
    conditions: Conditions | None = None
    # The pod.
    target_ref: TargetRef | None = None


class Slice(msgspec.Struct, rename="camel"):
    """The fields of an EndpointSlice that are read here."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class SliceList(msgspec.Struct):
    metadata: Metadata
    items: list[Slice] | None = None


class Status(msgspec.Struct):
    code: int = 500
    message: str = ""


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class ApiFailed(Exception):
    """A refusal by the API server; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message[:200]}")
        self.status = status


# ValueError: a line longer than the client's limit.
_REFUSED = (ApiFailed, msgspec.MsgspecError, ValueError)
# ConfigException: the service account's renewed token could not be read.
_UNREACHED = (aiohttp.ClientError, OSError, config.ConfigException)


@dataclass(frozen=True, slots=True)
class Connection:
    """The API server of this process's environment, and the process's own namespace."""

    api: Any
    namespace: str

    async def close(self) -> None:
        await self.api.api_client.close()


async def connect() -> Connection:
    """Connect by the Pod's service account, elsewhere by KUBECONFIG. Raises SettingsError."""
    settings = client.Configuration()
    namespace = "default"
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
            namespace = _own_namespace()
        else:
            await config.load_kube_config(client_configuration=settings)
            _, context = config.list_kube_config_contexts()
            namespace = context["context"].get("namespace", namespace)
        return Connection(client.DiscoveryV1Api(client.ApiClient(settings)), namespace)
    except (config.ConfigException, OSError, ssl.SSLError) as error:
        raise SettingsError(f"no Kubernetes API server is known here: {error}") from error


def _own_namespace() -> str:
    return _NAMESPACE_FILE.read_text().strip()


class EndpointSlices:
    """Discovery of one Service's endpoints. Owns the connection, and closes it at the end."""

    def __init__(self, connection: Connection, target: Target, random: Random) -> None:
        selector = f"kubernetes.io/service-name={target.host}"
        self._watch = SliceWatch(connection, selector, random, target.namespace)
        self._target = target

    async def follow(self, found: Found) -> None:
        reported: list[Member] | None = None

        def report(slices: Collection[Slice]) -> None:
            nonlocal reported
            members = members_of(slices, self._target.port)
            if members != reported:
                reported = members
                _log.info("members_listed", service=self._target.host, num_members=len(members))
                found(members)

        await self._watch.follow(report)


class SliceWatch:
    """The slices whose labels a selector takes. Owns the connection, and closes it at the end."""

    def __init__(
        self, connection: Connection, selector: str, random: Random, namespace: str = ""
    ) -> None:
        """Watch `namespace`; empty = the connection's own."""
        self._connection = connection
        self._selector = selector
        self._namespace = namespace or connection.namespace
        self._random = random
        self._slices: dict[str, Slice] = {}
        # The version of `_slices`; None = list again.
        self._version: str | None = None
        self._backoff_s = FIRST_BACKOFF_S

    async def follow(self, found: Callable[[Collection[Slice]], None]) -> None:
        """Call `found` with all slices when they are listed and after each event, until
        cancelled."""
        logged: str | None = None
        try:
            while True:
                try:
                    await self._list_and_watch(found)
                    logged = None
                except (*_REFUSED, *_UNREACHED) as error:
                    if isinstance(error, _REFUSED):
                        self._version = None
                    reason = f"{type(error).__name__} {error}"
                    if reason != logged:
                        logged = reason
                        _log.warning("api_failed", slices=self._selector, reason=reason)
                await asyncio.sleep(self._backoff_s * self._random.uniform(0.5, 1.0))
                self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        finally:
            await self._connection.close()

    async def _list_and_watch(self, found: Callable[[Collection[Slice]], None]) -> None:
        """Follow the slices until the watch ends cleanly. Raises _REFUSED and _UNREACHED."""
        if not self._version:
            await self._list()
            found(self._slices.values())
        async for event in self._events():
            self._apply(event)
            found(self._slices.values())
            self._backoff_s = FIRST_BACKOFF_S

    async def _list(self) -> None:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            response = await self._request()
            async with response:
                listed = msgspec.json.decode(await response.read(), type=SliceList)
        self._slices = {item.metadata.name: item for item in listed.items or ()}
        self._version = listed.metadata.resource_version

    async def _events(self) -> AsyncIterator[Event]:
        watch_s = round(WATCH_S * self._random.uniform(0.8, 1.2))
        async with asyncio.timeout(LIST_TIMEOUT_S):
            response = await self._request(
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=self._version,
                timeout_seconds=watch_s,
                _request_timeout=watch_s + SILENCE_S,
            )
        async with response:
            while line := await self._line(response):
                yield msgspec.json.decode(line, type=Event)

    async def _line(self, response: aiohttp.ClientResponse) -> bytes:
        """The next line of a watch; empty at its end, and after SILENCE_S without one."""
        try:
            line: bytes = await asyncio.wait_for(response.content.readline(), SILENCE_S)
            return line
        except TimeoutError:
            # No failure: nothing may have changed, and the pause until now was long enough.
            _log.debug("watch_silent", slices=self._selector, silence_s=SILENCE_S)
            self._backoff_s = FIRST_BACKOFF_S
            return b""

    async def _request(self, **options: Any) -> aiohttp.ClientResponse:
        """The answer to a list or watch, its body unread. Raises ApiFailed."""
        ask = self._connection.api.list_namespaced_endpoint_slice_without_preload_content
        response: aiohttp.ClientResponse = await ask(
            self._namespace,
            label_selector=self._selector,
            **options,
        )
        if response.status == 200:
            return response
        async with response:
            raise ApiFailed(response.status, (await response.read()).decode(errors="replace"))

    def _apply(self, event: Event) -> None:
        """Take an event of the watch. Raises ApiFailed for an ERROR event."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise ApiFailed(status.code, status.message)
        about = msgspec.json.decode(event.object, type=Slice)
        if event.type in ("ADDED", "MODIFIED"):
            self._slices[about.metadata.name] = about
        elif event.type == "DELETED":
            self._slices.pop(about.metadata.name, None)
        self._version = about.metadata.resource_version


def members_of(slices: Collection[Slice], port: str) -> list[Member]:
    """All endpoints of the slices at `port` (name, number, or "" = the only one), in order."""
    zones: dict[tuple[str, int], str] = {}
    for part in slices:
        number = port_number(part.ports or (), port)
        if number is None or part.address_type not in ("IPv4", "IPv6"):
            continue
        for endpoint in part.endpoints or ():
            # The addresses of one endpoint are equivalent; the first is used. An endpoint that
            # moves between slices may be in both for a moment.
            zones[endpoint.addresses[0], number] = endpoint.zone or ""
    family = one_family({host for host, _ in zones})
    return sorted(
        Member(joined(host, number), zone)
        for (host, number), zone in zones.items()
        if host in family
    )


def port_number(ports: Collection[Port], wanted: str) -> int | None:
    """The port of that name or number; "" = the only one. None when there is no such one."""
    numbers = [
        port.port for port in ports if port.port and wanted in ("", port.name, str(port.port))
    ]
    return numbers[0] if len(numbers) == 1 else None
