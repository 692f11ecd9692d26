"""The stub Kubernetes API server, asked by the official Python client; with `KUBEBUILDER_ASSETS` a
real one is asked the same, so that the stub says nothing else."""

import json
from collections.abc import Iterator

import pytest
from kubernetes import client, config, watch

from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key, Object
from tests.kit.kube.real_kube_api import (
    API_SERVERS,
    RealKubeApi,
    api_server,
    only_the_stub,
)

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


def key(api: KubeApi | RealKubeApi, name: str) -> Key:
    return Key(SLICES, "endpointslices", api.namespace, name)


@pytest.fixture(params=API_SERVERS)
def api(request: pytest.FixtureRequest) -> Iterator[KubeApi | RealKubeApi]:
    with api_server(request) as server:
        server.store.create(key(server, "a"), endpoint_slice("a"))
        server.store.create(key(server, "other"), endpoint_slice("other", "router"))
        yield server


@pytest.fixture
def api_client(api: KubeApi | RealKubeApi) -> Iterator[client.ApiClient]:
    configuration = client.Configuration()
    config.load_kube_config_from_dict(
        json.loads(api.kubeconfig()), client_configuration=configuration
    )
    configuration.retries = False
    with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
def slices(api_client: client.ApiClient) -> client.DiscoveryV1Api:
    return client.DiscoveryV1Api(api_client)


def test_list_selects_by_label_and_tells_the_version(
    api: KubeApi | RealKubeApi, slices: client.DiscoveryV1Api
) -> None:
    found = slices.list_namespaced_endpoint_slice(
        api.namespace, label_selector="kubernetes.io/service-name=gateway"
    )
    assert [item.metadata.name for item in found.items] == ["a"]
    # Others may have changed something meanwhile.
    assert int(found.metadata.resource_version) >= api.store.version


def test_watch_tells_changes_after_its_version_and_bookmarks(
    api: KubeApi | RealKubeApi, slices: client.DiscoveryV1Api
) -> None:
    before = str(api.store.version)
    api.store.create(key(api, "b"), endpoint_slice("b"))
    api.store.delete(key(api, "a"))
    events = watch.Watch().stream(
        slices.list_namespaced_endpoint_slice,
        api.namespace,
        resource_version=before,
        allow_watch_bookmarks=True,
        timeout_seconds=6,  # a real server's bookmark comes 2 s before
    )
    told = [next(events) for _ in range(2)]
    # No bookmark tells what was before the watch.
    api.store.create(key(api, "c"), endpoint_slice("c"))
    told += [next(events) for _ in range(2)]
    events.close()
    names = [(event["type"], event["raw_object"]["metadata"].get("name")) for event in told]
    assert names == [("ADDED", "b"), ("DELETED", "a"), ("ADDED", "c"), ("BOOKMARK", None)]


@only_the_stub
def test_watch_has_no_bookmark_while_nothing_changes(
    api: KubeApi | RealKubeApi, slices: client.DiscoveryV1Api
) -> None:
    """As of a real server whose etcd tells no progress; others have one."""
    before = str(api.store.version)
    api.store.create(key(api, "b"), endpoint_slice("b"))
    events = watch.Watch().stream(
        slices.list_namespaced_endpoint_slice,
        api.namespace,
        resource_version=before,
        allow_watch_bookmarks=True,
        timeout_seconds=2,
    )
    (told,) = events
    assert told["type"] == "ADDED"


def test_watch_from_a_forgotten_version_is_gone(
    api: KubeApi | RealKubeApi, slices: client.DiscoveryV1Api
) -> None:
    before = str(api.store.version)
    api.store.create(key(api, "b"), endpoint_slice("b"))
    api.store.compact()
    events = watch.Watch().stream(
        slices.list_namespaced_endpoint_slice, api.namespace, resource_version=before
    )
    with pytest.raises(client.ApiException) as refused:
        next(events)
    assert refused.value.status == 410


@only_the_stub  # urllib3 leaves a socket open whose handshake is reset
def test_objects_are_there_again_after_an_outage(
    api: KubeApi | RealKubeApi, slices: client.DiscoveryV1Api
) -> None:
    api.stop()
    with pytest.raises(Exception, match=r"refused|reset"):
        slices.list_namespaced_endpoint_slice(api.namespace)
    api.start()
    assert len(slices.list_namespaced_endpoint_slice(api.namespace).items) == 2


def test_create_replace_patch_and_delete_keep_the_rules_of_versions(
    api: KubeApi | RealKubeApi, api_client: client.ApiClient
) -> None:
    core = client.CoreV1Api(api_client)
    body = {"metadata": {"name": "one"}, "data": {"a": "1"}}
    created = core.create_namespaced_config_map(api.namespace, body)
    with pytest.raises(client.ApiException, match="409"):
        core.create_namespaced_config_map(api.namespace, body)
    patched = core.patch_namespaced_config_map("one", api.namespace, {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}
    created.data = {"a": "3"}
    with pytest.raises(client.ApiException, match="409"):
        core.replace_namespaced_config_map("one", api.namespace, created)
    core.delete_namespaced_config_map("one", api.namespace)
    with pytest.raises(client.ApiException, match="404"):
        core.read_namespaced_config_map("one", api.namespace)
