"""Tokenizers that are found by a stub API server's EndpointSlices; their name stands for nobody."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.runtime import grpc_server
from baton.system.clock import SystemClock
from baton.wire.failures import BatonError
from services.gateway.clients.grpc import GrpcTokenizer
from tests import needs
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key

pytest.importorskip("kubernetes", reason=needs.KUBERNETES)

SLICE = Key("discovery.k8s.io", "endpointslices", "here", "tokenizer-1")
PATIENCE_S = 30


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeApi]:
    from kubernetes.aio.config import kube_config

    with KubeApi() as running:
        path = tmp_path / "kubeconfig"
        path.write_text(running.kubeconfig())
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield running


def listed(port: int, *hosts: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": SLICE.name,
            "labels": {"kubernetes.io/service-name": "tokenizer"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": port}],
        "endpoints": [{"addresses": [host]} for host in hosts],
    }


async def until(client: GrpcTokenizer, *, answers: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(BatonError):
                await client.probe(1.0)
                if answers:
                    return
                continue
            if not answers:
                return


async def test_tokenizers_are_reached_at_the_addresses_that_the_cluster_lists(api: KubeApi) -> None:
    old = await grpc_server.start_server("127.0.0.1:0", lambda server: None)
    new = await grpc_server.start_server(f"127.0.0.2:{old.port}", lambda server: None)
    for server in (old, new):
        await server.set_serving(True)
    client = GrpcTokenizer([f"tokenizer.here.svc.cluster.test:{old.port}"], SystemClock())
    following = asyncio.create_task(client.follow())
    try:
        await until(client, answers=False)
        api.store.create(SLICE, listed(old.port, "127.0.0.1"))
        await until(client, answers=True)
        api.store.change(SLICE, lambda _: listed(old.port, "127.0.0.1", "127.0.0.2"))
        await old.stop(0)
        await until(client, answers=True)
        api.store.change(SLICE, lambda _: listed(old.port))
        await until(client, answers=False)
    finally:
        following.cancel()
        await client.close()
        await old.stop(0)
        await new.stop(0)
