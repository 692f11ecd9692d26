"""The parts that the chart brings along, run for real: Redis' configuration, the script of
`helm test`, the generated certificate."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.runtime.grpc_channel import open_channel
from baton.runtime.grpc_server import start_server
from baton.runtime.peer_tls import PeerTls
from tests.chart.rendered import (
    CHART,
    component,
    generated_certificate,
    named,
    of_component,
    of_kind,
    pod_of,
    profile,
    render,
)

EVENT = b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n'


def test_the_bundled_redis_takes_a_secret_that_exists() -> None:
    """As tools need that render without a cluster: theirs would be another one each time."""
    objects = render({"redis": {"existingSecret": "mine"}})
    mounted = {
        source["secret"]["name"]
        for volume in pod_of(named(objects, "StatefulSet", "baton-redis"))["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "secret" in source
    }
    assert mounted == {"mine"}
    quota = pod_of(named(objects, "StatefulSet", "baton-quota"))["spec"]
    assert "mine" in {one.get("secret", {}).get("secretName") for one in quota["volumes"]}
    assert "baton-redis" not in {one["metadata"]["name"] for one in of_kind(objects, "Secret")}


def test_two_renders_without_a_cluster_are_the_same_with_secrets_that_exist() -> None:
    values = {
        "auth": {"existingSecret": "auth"},
        "redis": {"existingSecret": "redis"},
        "tls": {"mode": "existingSecret", "existingSecret": "tls"},
        "page": {"enabled": True, "existingSecret": "page"},
    }
    assert render(values) == render(values)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every request so; its address, and the keys that it was shown."""
    shown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            shown.append(self.headers["authorization"])
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", shown
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (200, EVENT % b"Hel" + EVENT % b"lo" + b"data: [DONE]\n\n", ""),
        (200, EVENT % b"Hello" + b"data: [DONE]\n\n", "the answer was not streamed"),
        (200, EVENT % b"Hel" + EVENT % b"lo", "did not end with [DONE]"),
        (401, b"{}", "status 401"),
    ],
)
def test_script_of_helm_test_tells_a_stream_from_anything_else(
    tmp_path: Path, status: int, body: bytes, fault: str
) -> None:
    (tmp_path / "api-key").write_text("bt-key\n")
    with answering(status, body) as (url, shown):
        told = {"BASE_URL": url, "MODEL": "m", "KEY_FILE": str(tmp_path / "api-key")}
        ended = subprocess.run(
            [sys.executable, str(CHART / "files/stream_completion.py")],
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert shown == ["Bearer bt-key"]
    assert (ended.returncode != 0) == bool(fault)
    assert fault in ended.stderr


async def test_services_trust_each_other_by_the_generated_certificate(tmp_path: Path) -> None:
    generated_certificate("gateway", tmp_path)
    tls = PeerTls(
        (tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt"), "baton", per_service=True
    )
    server = await start_server("127.0.0.1:0", lambda grpc_server: None, tls=tls)
    try:
        async with open_channel(f"127.0.0.1:{server.port}", tls=tls) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = await check(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("name", "secret"), [("external-redis", "baton-mtls-"), ("h100-pools", "baton-tls-")]
)
def test_each_service_has_a_certificate_of_its_own(name: str, secret: str) -> None:
    for workload in of_component(profile(name), "gateway", "quota", "router", "tokenizer"):
        volumes = pod_of(workload)["spec"]["volumes"]
        (mounted,) = [one["secret"]["secretName"] for one in volumes if one["name"] == "tls"]
        assert mounted == secret + component(workload)
