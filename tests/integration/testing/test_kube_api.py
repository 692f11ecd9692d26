"""The stub Kubernetes API server, asked by the official Python client."""

from collections.abc import Iterator

import pytest
from kubernetes import client, watch

from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key, Object

SLICES = "discovery.k8s.io"


def endpoint_slice(name: str, service: str = "gateway") -> Object:
    labels = {"kubernetes.io/service-name": service}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": [],
    }


def key(name: str) -> Key:
    return Key(SLICES, "endpointslices", "default", name)


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with KubeApi() as server:
        server.store.create(key("a"), endpoint_slice("a"))
        server.store.create(key("other"), endpoint_slice("other", "router"))
        yield server


@pytest.fixture
def api_client(api: KubeApi) -> Iterator[client.ApiClient]:
    configuration = client.Configuration()
    configuration.host = api.url
    configuration.retries = False
    with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
def slices(api_client: client.ApiClient) -> client.DiscoveryV1Api:
    return client.DiscoveryV1Api(api_client)


def test_list_selects_by_label_and_tells_the_version(
    api: KubeApi, slices: client.DiscoveryV1Api
) -> None:
    found = slices.list_namespaced_endpoint_slice(
        "default", label_selector="kubernetes.io/service-name=gateway"
    )
    assert [item.metadata.name for item in found.items] == ["a"]
    assert found.metadata.resource_version == str(api.store.version)


def test_watch_tells_changes_after_its_version_and_bookmarks(
    api: KubeApi, slices: client.DiscoveryV1Api
) -> None:
    before = str(api.store.version)
    api.store.create(key("b"), endpoint_slice("b"))
    api.store.delete(key("a"))
    events = watch.Watch().stream(
        slices.list_namespaced_endpoint_slice,
        "default",
        resource_version=before,
        allow_watch_bookmarks=True,
        timeout_seconds=30,
    )
    told = [next(events) for _ in range(3)]
    events.close()
    names = [(event["type"], event["raw_object"]["metadata"].get("name")) for event in told]
    assert names == [("ADDED", "b"), ("DELETED", "a"), ("BOOKMARK", None)]


def test_watch_from_a_forgotten_version_is_gone(
    api: KubeApi, slices: client.DiscoveryV1Api
) -> None:
    before = str(api.store.version)
    api.store.create(key("b"), endpoint_slice("b"))
    api.store.compact()
    events = watch.Watch().stream(
        slices.list_namespaced_endpoint_slice, "default", resource_version=before
    )
    with pytest.raises(client.ApiException) as refused:
        next(events)
    assert refused.value.status == 410


def test_objects_are_there_again_after_an_outage(
    api: KubeApi, slices: client.DiscoveryV1Api
) -> None:
    api.stop()
    with pytest.raises(Exception, match="Connection refused"):
        slices.list_namespaced_endpoint_slice("default")
    api.start()
    assert len(slices.list_namespaced_endpoint_slice("default").items) == 2


def test_create_replace_patch_and_delete_keep_the_rules_of_versions(
    api: KubeApi, api_client: client.ApiClient
) -> None:
    core = client.CoreV1Api(api_client)
    body = {"metadata": {"name": "one"}, "data": {"a": "1"}}
    created = core.create_namespaced_config_map("default", body)
    with pytest.raises(client.ApiException, match="409"):
        core.create_namespaced_config_map("default", body)
    patched = core.patch_namespaced_config_map("one", "default", {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}
    created.data = {"a": "3"}
    with pytest.raises(client.ApiException, match="409"):
        core.replace_namespaced_config_map("one", "default", created)
    core.delete_namespaced_config_map("one", "default")
    with pytest.raises(client.ApiException, match="404"):
        core.read_namespaced_config_map("one", "default")
