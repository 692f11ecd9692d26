"""The process of a release's page: pods from an API server, spans from services, a browser."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from baton.localstack.ports import free_ports
from tests import needs
from tests.integration.localstack.conftest import Admin, wait_for
from tests.kit.browser import Browser
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key

pytest.importorskip("kubernetes", reason=needs.KUBERNETES)

TOKEN = "the-token-of-the-operators"
TIMEOUT_S = 60
LOGIN_FIELD = "document.getElementById('token')"
DECODE = "baton-baton-demo-decode-5d4f8c7b9-x2k4j"


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """What the page sends on to."""

    def __init__(self) -> None:
        self.spans = threading.Event()
        self.metrics = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            self.spans.set()
            return trace_service_pb2.ExportTraceServiceResponse()
        self.metrics.set()
        return metrics_service_pb2.ExportMetricsServiceResponse()


@dataclass(frozen=True)
class Running:
    """A page, and what is around it."""

    url: str
    spans: str
    admin: str
    api: KubeApi
    collector: Collector
    token: Path


def slice_of(component: str, *pods: str, release: str = "baton") -> dict[str, Any]:
    """As the controller makes it: with the labels of its Service."""
    labels = {
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": component,
        "kubernetes.io/service-name": f"{release}-{component}",
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{release}-{component}", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": 7000}],
        "endpoints": [
            {
                "addresses": ["127.0.0.1"],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": pod},
            }
            for pod in pods
        ],
    }


def put(api: KubeApi, part: dict[str, Any]) -> None:
    api.store.create(
        Key("discovery.k8s.io", "endpointslices", "default", part["metadata"]["name"]), part
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    admin = ThreadingHTTPServer(("127.0.0.1", 0), Admin)
    threading.Thread(target=admin.serve_forever, daemon=True).start()
    collector = Collector()
    beyond = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, beyond)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, beyond)
    beyond_port = beyond.add_insecure_port("127.0.0.1:0")
    beyond.start()
    web, spans, own = (f"127.0.0.1:{port}" for port in free_ports(3))
    token = folder / "token"
    token.write_text(TOKEN)
    with KubeApi() as api:
        put(api, slice_of("gateway", "baton-gateway-6c9-abcde"))
        put(api, slice_of("decode", DECODE))
        put(api, slice_of("gateway", "other-gateway-1", release="other"))
        (folder / "kubeconfig").write_text(api.kubeconfig())
        told = {
            "KUBECONFIG": folder / "kubeconfig",
            "BATON_PAGE_LISTEN": web,
            "BATON_PAGE_SPANS_LISTEN": spans,
            "BATON_PAGE_ADMIN_LISTEN": own,
            "BATON_PAGE_RELEASE": "baton",
            "BATON_PAGE_TOKEN_FILE": token,
            "BATON_PAGE_SPANS_FILE": folder / "spans.db",
            "BATON_PAGE_SERVICES_PORT": admin.server_port,
            "BATON_PAGE_FORWARD_TO": f"http://127.0.0.1:{beyond_port}",
        }
        environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
        process = subprocess.Popen([sys.executable, "-m", "services.page"], env=environment)
        try:
            wait_for(f"http://{own}/readyz")
            yield Running(f"http://{web}", spans, own, api, collector, token)
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
            beyond.stop(0)
            admin.shutdown()
            admin.server_close()


def asked(page: Running, path: str, cookie: str = "", body: bytes | None = None) -> Any:
    """The answer's JSON, or the status of a refusal."""
    headers = {"Cookie": cookie, "Origin": page.url, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{page.url}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def session(page: Running) -> str:
    """The cookie of a visitor who has logged in."""
    body = json.dumps({"token": TOKEN}).encode()
    headers = {"Origin": page.url, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{page.url}/api/login", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return str(answer.headers["Set-Cookie"].partition(";")[0])


def until(true: Any) -> Any:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (found := true()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found


def test_the_pods_of_the_release_are_the_fleet_as_the_api_server_lists_them(page: Running) -> None:
    assert asked(page, "/api/fleet") == 401
    cookie = session(page)
    look = asked(page, "/api/fleet", cookie)
    assert look["stack"] == "baton in default"
    assert list(look["lives"]) == ["baton-gateway-6c9-abcde", DECODE]
    (worker,) = look["fleet"]["workers"]
    assert (worker["name"], worker["role"], worker["num_running"]) == (DECODE, "decode", 3)
    assert look["requests"][0]["gateway"] == "baton-gateway-6c9-abcde"
    put(page.api, slice_of("router", "baton-router-0"))
    until(lambda: "baton-router-0" in asked(page, "/api/fleet", cookie)["lives"])


def test_spans_are_listed_and_sent_on_and_metrics_only_pass_through(page: Running) -> None:
    cookie = session(page)
    with grpc.insecure_channel(page.spans) as channel:
        trace_service_pb2_grpc.TraceServiceStub(channel).Export(a_request(), timeout=TIMEOUT_S)
        metrics = metrics_service_pb2.ExportMetricsServiceRequest()
        metrics_service_pb2_grpc.MetricsServiceStub(channel).Export(metrics, timeout=TIMEOUT_S)
    rows = asked(page, "/api/requests", cookie)["rows"]
    assert [row["request_id"] for row in rows] == ["req_1"]
    assert asked(page, "/api/requests/req_1", cookie)["state"] == "ended"
    assert asked(page, "/api/requests/req_2", cookie)["state"] == "unkept"
    assert page.collector.spans.wait(TIMEOUT_S)
    assert page.collector.metrics.is_set()


def test_another_token_in_the_secret_ends_the_session(page: Running) -> None:
    cookie = session(page)
    page.token.write_text("another-token-of-the-operators")
    try:
        assert asked(page, "/api/mode", cookie) == 401
    finally:
        page.token.write_text(TOKEN)


def a_request() -> Any:
    """The span of one request, as a gateway exports it."""
    sent = trace_service_pb2.ExportTraceServiceRequest()
    group = sent.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "baton-gateway"
    span = group.scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="chat m")
    span.end_time_unix_nano = time.time_ns()
    span.start_time_unix_nano = span.end_time_unix_nano - 10**8
    for name, value in (("baton.request_id", "req_1"), ("baton.outcome", "stop")):
        span.attributes.add(key=name).value.string_value = value
    return sent


@needs.browser
def test_a_visitor_logs_in_reads_and_finds_nothing_that_could_be_changed(
    page: Running, tmp_path: Path
) -> None:
    with Browser(str(needs.BROWSER), tmp_path) as browser:
        browser.look(1280, 900)
        browser.open(f"{page.url}/#/workers/{DECODE}")
        browser.until(f"document.readyState === 'complete' && {LOGIN_FIELD}")
        browser.run(f"{LOGIN_FIELD}.focus()")
        browser.type("wrong")
        browser.key("Enter", 13)
        browser.until("document.getElementById('problem').textContent.includes('not the token')")
        browser.run(f"{LOGIN_FIELD}.value = ''")
        browser.type(TOKEN)
        browser.key("Enter", 13)
        # Back where the visitor wanted to go.
        browser.until("document.querySelector('.worker.decode')")
        links = "[...document.querySelectorAll('nav a:not([hidden])')]"
        shown = browser.run(f"{links}.map((link) => link.textContent)")
        assert shown == ["Fleet", "Requests"]
        assert browser.run("document.cookie") == ""
        assert browser.run("document.body.innerText").count("Log\n") == 0
        browser.open(f"{page.url}/#/playground")
        browser.until("document.body.innerText.includes('no such view')")
        browser.click("#logout")
        browser.until(LOGIN_FIELD)
        # A wrong token is an error that the browser notes, too.
        assert [error for error in browser.errors if "403" not in error] == []
