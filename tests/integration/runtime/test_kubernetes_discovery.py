"""EndpointSlices by the official client, against a stub API server that speaks the protocol; with
`KUBEBUILDER_ASSETS` against a real one as well, in all that one can be made to do."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from baton.runtime.discovery.discover import discover
from baton.runtime.discovery.members import Discovery, Member, Target
from baton.runtime.environment import SettingsError
from baton.testing.certificates import Authority
from tests import needs
from tests.kit.kube import kube_watch
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key
from tests.kit.kube.real_kube_api import (
    API_SERVERS,
    RealKubeApi,
    api_server,
    only_the_stub,
)

pytest.importorskip("kubernetes", reason=needs.KUBERNETES)

from baton.runtime.discovery import kubernetes as kubernetes_discovery

TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_discovery, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(kubernetes_discovery, "MAX_BACKOFF_S", 0.1)


@pytest.fixture(params=API_SERVERS)
def api(request: pytest.FixtureRequest) -> Iterator[KubeApi | RealKubeApi]:
    with api_server(request) as running:
        yield running


@pytest.fixture(autouse=True)
def kubeconfig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Leads to the server, as a user's file would."""
    from kubernetes.aio.config import kube_config

    path = tmp_path / "kubeconfig"
    if "api" in request.fixturenames:
        path.write_text(request.getfixturevalue("api").kubeconfig())
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def key(api: KubeApi | RealKubeApi, name: str) -> Key:
    return Key("discovery.k8s.io", "endpointslices", api.namespace, name)


def endpoint_slice(service: str, *addresses: str, **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": 7200}, {"name": "admin", "port": 7201}],
        "endpoints": [
            {"addresses": [address], "zone": "zone-a", "conditions": {"ready": False}}
            for address in addresses
        ],
        **changes,
    }


def put(api: KubeApi | RealKubeApi, name: str, *addresses: str, service: str = "workers") -> None:
    part = endpoint_slice(service, *addresses)
    if api.store.find(key(api, name)) is None:
        api.store.create(key(api, name), part)
    else:
        api.store.change(key(api, name), lambda old: {**part, "metadata": old["metadata"]})


class Followed:
    """What the source told last."""

    def __init__(self, source: Discovery) -> None:
        self.source = source
        self.members: list[Member] | None = None
        self.num_told = 0
        self._changed = asyncio.Event()

    def __call__(self, members) -> None:
        self.members = list(members)
        self.num_told += 1
        self._changed.set()

    async def until(self, *addresses: str) -> None:
        wanted = [f"{address}:7200" for address in addresses]
        async with asyncio.timeout(TIMEOUT_S):
            while [member.address for member in self.members or ()] != wanted:
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def following(target: str = "kubernetes:workers:grpc") -> AsyncIterator[Followed]:
    source = await discover([target], Random(1))
    followed = Followed(source)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(source.follow(followed))
        yield followed
        task.cancel()
    if source._watch._connection.api.api_client.configuration.host.startswith("https:"):
        # aiohttp does not wait for the end of its TLS connections.
        await asyncio.sleep(0.25)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


def num_lists(api: KubeApi | RealKubeApi) -> int:
    return sum("watch=" not in request for request in api.requests)


def watch_versions(api: KubeApi | RealKubeApi) -> list[str]:
    found = (request.partition("resourceVersion=")[2] for request in api.requests)
    return [version.partition("&")[0] for version in found if version]


async def test_endpoints_are_listed_whether_ready_or_not_and_changes_are_told(api) -> None:
    put(api, "workers-1", "10.0.0.1")
    put(api, "others-1", "10.0.9.9", service="others")
    async with following() as followed:
        await followed.until("10.0.0.1")
        assert followed.members == [Member("10.0.0.1:7200", "zone-a")]
        put(api, "workers-2", "10.0.0.2")
        await followed.until("10.0.0.1", "10.0.0.2")
        put(api, "workers-1", "10.0.0.1", "10.0.0.3")
        await followed.until("10.0.0.1", "10.0.0.2", "10.0.0.3")
        api.store.delete(key(api, "workers-1"))
        await followed.until("10.0.0.2")
        assert num_lists(api) == 1


async def test_a_watch_that_breaks_goes_on_from_where_it_was(api) -> None:
    put(api, "workers-1", "10.0.0.1")
    async with following() as followed:
        await followed.until("10.0.0.1")
        put(api, "workers-1", "10.0.0.2")
        await followed.until("10.0.0.2")
        version = str(api.store.version)
        num_requests = len(api.requests)
        api.close_connections()
        await until(lambda: len(api.requests) > num_requests)
        put(api, "workers-1", "10.0.0.3")
        await followed.until("10.0.0.3")
        assert num_lists(api) == 1
        assert watch_versions(api)[-1] == version


async def until_a_bookmark(api: KubeApi | RealKubeApi, followed: Followed) -> None:
    """Let something change of which this watch is not told, until a bookmark tells the version."""
    put(api, "others-1", "10.0.9.0", service="others")
    version = api.store.version
    for number in count(1):
        if int(followed.source._watch._version) >= version:
            return
        await asyncio.sleep(0.2)
        # Again and again: a server has no bookmark for what was before the watch.
        put(api, "others-1", f"10.0.9.{number % 250}", service="others")


async def test_a_bookmark_tells_the_version_without_an_object(api, monkeypatch) -> None:
    monkeypatch.setattr(kube_watch, "BOOKMARK_INTERVAL_S", 0.05)
    # A real server's bookmarks come once a minute, and 2 s before a watch ends.
    monkeypatch.setattr(kubernetes_discovery, "WATCH_S", 5)
    put(api, "workers-1", "10.0.0.1")
    async with following() as followed, asyncio.timeout(TIMEOUT_S):
        await followed.until("10.0.0.1")
        await until_a_bookmark(api, followed)
        assert followed.num_told == 1


@only_the_stub
async def test_bookmarks_carry_the_watch_past_what_the_server_forgets(api, monkeypatch) -> None:
    monkeypatch.setattr(kube_watch, "BOOKMARK_INTERVAL_S", 0.05)
    put(api, "workers-1", "10.0.0.1")
    async with following() as followed, asyncio.timeout(TIMEOUT_S):
        await followed.until("10.0.0.1")
        await until_a_bookmark(api, followed)
        version = api.store.version
        await until(lambda: followed.source._watch._version == str(version))
        api.store.compact()
        api.close_connections()
        put(api, "workers-1", "10.0.0.2")
        await followed.until("10.0.0.2")
        assert num_lists(api) == 1


async def test_a_forgotten_version_means_a_new_list(api) -> None:
    put(api, "workers-1", "10.0.0.1")
    put(api, "workers-2", "10.0.0.2")
    async with following() as followed:
        await followed.until("10.0.0.1", "10.0.0.2")
        api.stop()
        api.store.delete(key(api, "workers-1"))  # an event that nobody will be told of
        put(api, "workers-2", "10.0.0.3")
        api.store.compact()
        api.start()
        await followed.until("10.0.0.3")
        assert num_lists(api) >= 2


@only_the_stub
@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_an_api_server_that_refuses_changes_nothing(api, status: int) -> None:
    put(api, "workers-1", "10.0.0.1")
    async with following() as followed:
        await followed.until("10.0.0.1")
        api.refuse_with = status
        api.close_connections()
        num_requests = len(api.requests)
        await until(lambda: len(api.requests) > num_requests + 2)
        assert followed.num_told == 1
        put(api, "workers-1", "10.0.0.2")
        api.refuse_with = 0
        await followed.until("10.0.0.2")


async def test_an_api_server_that_is_away_changes_nothing_and_is_found_again(api) -> None:
    put(api, "workers-1", "10.0.0.1")
    async with following() as followed:
        await followed.until("10.0.0.1")
        api.stop()
        put(api, "workers-1", "10.0.0.2")
        await asyncio.sleep(0.5)
        assert followed.num_told == 1
        api.start()
        await followed.until("10.0.0.2")


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(api) -> None:
    put(api, "workers-1", "10.0.0.1")
    api.stop()
    async with following() as followed:
        await asyncio.sleep(0.2)
        assert followed.num_told == 0
        api.start()
        await followed.until("10.0.0.1")


@only_the_stub
async def test_an_answer_that_is_not_kubernetes_changes_nothing(api, monkeypatch) -> None:
    put(api, "workers-1", "10.0.0.1")
    async with following() as followed:
        await followed.until("10.0.0.1")
        document = api.document
        monkeypatch.setattr(api, "document", lambda path: "<html>")
        api.close_connections()
        num_requests = len(api.requests)
        await until(lambda: len(api.requests) > num_requests + 2)
        assert followed.num_told == 1
        monkeypatch.setattr(api, "document", document)
        put(api, "workers-1", "10.0.0.2")
        await followed.until("10.0.0.2")


async def test_without_a_cluster_the_reason_is_said() -> None:
    with pytest.raises(SettingsError, match="no Kubernetes API server is known here"):
        await discover(["kubernetes:workers"], Random(1))


def test_ports_and_address_families() -> None:
    def members(port: str, *slices: dict[str, Any]) -> list[str]:
        parsed = [
            kubernetes_discovery.msgspec.json.decode(
                json.dumps(part), type=kubernetes_discovery.Slice
            )
            for part in slices
        ]
        return [m.address for m in kubernetes_discovery.members_of(parsed, port)]

    four = endpoint_slice("w", "10.0.0.1")
    six = endpoint_slice("w", "fd00::1", addressType="IPv6")
    named = endpoint_slice("w", "a.example", addressType="FQDN")
    empty = endpoint_slice("w", endpoints=None, ports=None)
    assert members("grpc", four, six, named, empty) == ["10.0.0.1:7200"]
    assert members("7201", six) == ["[fd00::1]:7201"]
    assert members("", four) == []  # which of the two?
    assert members("", endpoint_slice("w", "10.0.0.1", ports=[{"port": 80}])) == ["10.0.0.1:80"]
    assert members("http", four) == []
    # One endpoint on its way between two slices; two endpoints on one node's address.
    assert members("grpc", four, endpoint_slice("w", "10.0.0.1")) == ["10.0.0.1:7200"]
    other = endpoint_slice("w", "10.0.0.1", ports=[{"name": "grpc", "port": 7300}])
    assert members("grpc", four, other) == ["10.0.0.1:7200", "10.0.0.1:7300"]
    assert Target.parse("kubernetes:w").port == ""


async def test_a_pod_uses_its_service_account(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    from kubernetes.aio.config import incluster_config

    for name, text in (("token", "secret-token"), ("namespace", "prod\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_bytes(Authority(tmp_path, "cluster").certificate)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(kubernetes_discovery, "_NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    connection = await kubernetes_discovery.connect()
    settings = connection.api.api_client.configuration
    assert settings.host == "https://10.96.0.1:443"
    assert settings.api_key["BearerToken"] == "bearer secret-token"
    assert connection.namespace == "prod"
    await connection.close()
    (tmp_path / "token").unlink()
    with pytest.raises(SettingsError, match="no Kubernetes API server is known here"):
        await kubernetes_discovery.connect()
