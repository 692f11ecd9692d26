"""Requests through a real Envoy that the real control plane has configured."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from baton.page.span_store import StoredSpan, spans_of_export
from baton.runtime.http_call import call
from baton.runtime.otlp import span_headers
from baton.testing.certificates import Authority
from services.edge.discovery import GatewayState, Location
from services.edge.tracing import AUTHORITIES, ENDPOINT, tracing_of
from tests.integration.edge.edge_stack import (
    PATIENCE_S,
    Edge,
    SmallGateway,
    running_edge,
    send_two_lengths,
)
from tests.integration.runtime.tls_collector import tls_collector

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"


TOKEN = "Bearer 100% hunter2"


class Spans(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector that asks for a token."""

    def __init__(self, spans: list[StoredSpan]) -> None:
        self._spans = spans

    async def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
        if dict(context.invocation_metadata()).get("x-token") == TOKEN:
            self._spans += spans_of_export(request)
        return ExportTraceServiceResponse()


@pytest.fixture(scope="module")
def spans() -> list[StoredSpan]:
    """What Envoy has exported."""
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    spans: list[StoredSpan], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Edge]:
    folder = tmp_path_factory.mktemp("collector")
    files = Authority(folder, "theirs").issue(folder / "files", "IP:127.0.0.1")
    near = [SmallGateway("a"), SmallGateway("b")]
    far = [SmallGateway("far", Location("there", "z"))]
    async with tls_collector(Spans(spans), files) as port:
        told = {
            ENDPOINT: f"https://127.0.0.1:{port}",
            AUTHORITIES: str(files.ca),
            span_headers.VARIABLE: f"x-token={quote(TOKEN)}",
        }
        async with running_edge([*near, *far], tracing_of(told), told=told) as edge:
            yield edge


@pytest_asyncio.fixture(loop_scope="module")
async def edge(running: Edge) -> Edge:
    """With all gateways ready and known as that."""
    for gateway in running.gateways:
        gateway.state, gateway.status = GatewayState.READY, 200
        gateway.num_pieces, gateway.go = 1, None
    running.discovery.tell()
    await running.until_hosts(*((gateway, "healthy") for gateway in running.gateways))
    return running


@pytest_asyncio.fixture(loop_scope="module")
async def http(edge: Edge) -> AsyncIterator[httpx.AsyncClient]:
    # Without the certificates of all authorities, which take 30 ms to read each time.
    async with httpx.AsyncClient(base_url=edge.root, timeout=PATIENCE_S, verify=False) as client:
        yield client


async def served_by(http: httpx.AsyncClient, count: int = 20) -> set[str]:
    """Which gateways answered `count` requests; all of them did."""
    answers = [await http.post(CHAT, content=b"{}") for _ in range(count)]
    assert {answer.status_code for answer in answers} == {200}
    return {answer.headers["x-gateway"] for answer in answers}


async def test_a_piece_arrives_before_the_next_one_is_sent(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 5, asyncio.Queue()
    async with http.stream("POST", CHAT, content=b"{}") as answer:
        assert answer.status_code == 200
        serving = next(g for g in edge.gateways if g.name == answer.headers["x-gateway"])
        pieces = answer.aiter_raw()
        for number in range(5):
            assert serving.go is not None
            serving.go.put_nowait(None)
            async with asyncio.timeout(PATIENCE_S):
                assert await anext(pieces) == f"data: {number}\n\n".encode()


async def test_a_client_that_leaves_is_gone_at_the_gateway(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go, gateway.num_cancelled = 5, asyncio.Queue(), 0
    async with http.stream("POST", CHAT, content=b"{}") as answer:
        serving = next(g for g in edge.gateways if g.name == answer.headers["x-gateway"])

    async def has_noticed() -> bool:
        return serving.num_cancelled == 1

    await edge.until(has_noticed)


async def test_a_draining_gateway_ends_what_it_has_and_gets_nothing_new(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    near = edge.gateways[:2]
    for gateway in near:
        gateway.num_pieces, gateway.go = 2, asyncio.Queue()
    async with http.stream("POST", CHAT, content=b"{}") as answer:
        leaving = next(g for g in near if g.name == answer.headers["x-gateway"])
        other = next(g for g in near if g is not leaving)
        other.num_pieces, other.go = 1, None
        leaving.state = GatewayState.DRAINING
        edge.discovery.tell()
        await edge.until_hosts(
            *((g, "healthy") for g in edge.gateways if g is not leaving),
            (leaving, "/failed_active_hc/eds_status_draining"),
        )
        assert await served_by(http) <= {other.name, "far"}
        assert leaving.go is not None
        leaving.go.put_nowait(None)
        leaving.go.put_nowait(None)
        assert await answer.aread() == b"data: 0\n\ndata: 1\n\n"


async def test_near_gateways_serve_alone_until_too_few_are_healthy(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    assert await served_by(http) == {"a", "b"}
    edge.gateways[0].state = GatewayState.UNREADY
    edge.discovery.tell()
    a, b, far = edge.gateways
    unready = (a, "/failed_active_hc/failed_eds_health")
    await edge.until_hosts(unready, (b, "healthy"), (far, "healthy"))
    assert await served_by(http, 60) == {"b", "far"}
    b.state = GatewayState.UNREADY
    edge.discovery.tell()
    await edge.until_hosts(unready, (b, "/failed_active_hc/failed_eds_health"), (far, "healthy"))
    assert await served_by(http) == {"far"}


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_passed_on_once_and_ejects_nobody(
    edge: Edge, http: httpx.AsyncClient, status: int
) -> None:
    for gateway in edge.gateways:
        gateway.status, gateway.num_requests = status, 0
    for _ in range(30):
        answer = await http.post(CHAT, content=b"{}")
        assert answer.status_code == status
        assert answer.headers["x-gateway"] in ("a", "b")
    assert sum(gateway.num_requests for gateway in edge.gateways) == 30
    stats = await edge.stats("gateways.outlier_detection.ejections")
    assert stats["cluster.gateways.outlier_detection.ejections_active"] == 0
    assert stats["cluster.gateways.outlier_detection.ejections_enforced_total"] == 0


async def test_what_nobody_can_serve_is_asked_of_everybody(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    for gateway in edge.gateways:
        gateway.state, gateway.status = GatewayState.UNREADY, 503
    edge.discovery.tell()
    bad = "/failed_active_hc/failed_eds_health"
    await edge.until_hosts(*((gateway, bad) for gateway in edge.gateways))
    answer = await http.post(CHAT, content=b"{}")
    assert answer.status_code == 503
    assert "x-gateway" in answer.headers, "the gateway's own words, with its reason"


async def test_who_somebody_is_cannot_be_said_from_outside(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    given = {
        "x-request-id": "mine",
        "x-baton-tenant": "root",
        "x-user-id": "root",
        "x-auth-request-user": "root",
        "x-forwarded-client-cert": "By=x",
        "x-envoy-retry-on": "5xx",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-gateway-destination-endpoint": "127.0.0.1:1",
        "x-request-timeout-s": "5",
        "x-explain": "1",
        "x-forwarded-for": "10.0.0.1",
        "authorization": "Bearer key",
    }
    answer = await http.post(CHAT, content=b"{}", headers=given)
    serving = next(g for g in edge.gateways if g.name == answer.headers["x-gateway"])
    passed = serving.requests[-1]
    assert passed["authorization"] == "Bearer key"
    assert passed["x-request-timeout-s"] == "5"
    assert passed["x-explain"] == "1"
    assert passed["x-forwarded-for"].startswith("10.0.0.1,")
    assert passed["x-request-id"] == "mine"
    assert answer.headers["x-request-id"] == f"req_{serving.name}_{serving.num_requests}"
    stripped = set(given) - {
        "authorization", "x-request-timeout-s", "x-explain", "x-forwarded-for", "x-request-id",
    }  # fmt: skip
    assert not stripped & set(passed)


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/readyz/x", {}, 404, "not_found"),
        ("/v1/../metrics", {}, 404, "not_found"),
        (CHAT, {"content-length": "8388609"}, 413, "body_too_large"),
        (CHAT, {"x-large": "a" * 61 * 1024}, 431, "headers_too_large"),
        (CHAT, {"x_underscore": "a"}, 400, "invalid_http"),
        (CHAT, {f"x-{number}": "a" for number in range(101)}, 431, "headers_too_large"),
    ],
)
async def test_what_envoy_refuses_reads_like_a_refusal_of_the_gateway(
    edge: Edge, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer = await exchange(edge, f"POST {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert b"x-should-retry: false" in head
    was_read = status in (404, 413)
    assert (b"x-request-id: " in head) == was_read


async def test_envoy_says_that_it_is_ready(http: httpx.AsyncClient) -> None:
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


async def exchange(edge: Edge, sent: bytes) -> bytes:
    """Everything that Envoy says until it closes the connection, or until its answer is whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"connection: close" in head:
                return head + await reader.read()
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            return head + await reader.readexactly(length)
    finally:
        writer.close()


@pytest.mark.parametrize("order", [("length", "chunked"), ("chunked", "length")])
@pytest.mark.parametrize("cut", ["whole", "lines"])
async def test_two_lengths_are_one_400_and_a_close(
    edge: Edge, order: tuple[str, str], cut: str
) -> None:
    before = [gateway.num_requests for gateway in edge.gateways]
    answer = await send_two_lengths(edge.port, order, cut)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert [gateway.num_requests for gateway in edge.gateways] == before


@pytest.mark.parametrize("flag", ["01", "00"])
async def test_a_request_begins_a_trace_at_the_edge_whatever_its_client_says(
    edge: Edge, http: httpx.AsyncClient, spans: list[StoredSpan], flag: str
) -> None:
    theirs = f"00-{'a' * 32}-{'b' * 16}-{flag}"
    headers = {"traceparent": theirs, "x-baton-client-traceparent": "forged"}
    answer = await http.post(f"{CHAT}?api_key=secret", content=b"{}", headers=headers)
    serving = next(g for g in edge.gateways if g.name == answer.headers["x-gateway"])

    sent = serving.requests[-1]
    assert sent["x-baton-client-traceparent"] == theirs
    _, trace_id, call_id, sampled = sent["traceparent"].split("-")
    assert (trace_id == "a" * 32, sampled) == (False, "01")

    async def has_come() -> bool:
        return sum(span.trace_id == trace_id for span in spans) == 2

    await edge.until(has_come)
    own, called = sorted(
        (span for span in spans if span.trace_id == trace_id), key=lambda span: span.parent_id
    )
    assert (own.service, own.name, own.parent_id) == ("envoy", f"POST {CHAT}", "")
    assert own.request_id == answer.headers["x-request-id"]
    assert (called.span_id, called.parent_id) == (call_id, own.span_id)
    assert "secret" not in str(own.attributes)
    _, shown = await call(edge.admin, "/config_dump", timeout_s=PATIENCE_S)
    assert b"x-token" in shown
    assert b"hunter2" not in shown


async def test_the_access_log_is_json_and_tells_no_query(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    headers = {"x-request-id": "job-" + "7" * 200}
    answer = await http.post(f"{CHAT}?api_key=secret", content=b"{}", headers=headers)
    # The gateways' ids repeat, because other tests start gateways of the same names.
    client_id = json.dumps(headers["x-request-id"][:128])

    async def is_written() -> bool:
        return client_id in edge.log.read_text()

    await edge.until(is_written)
    log = edge.log.read_text()
    (line,) = (line for line in log.splitlines() if client_id in line)
    written = json.loads(line)
    assert (written["path"], written["status"]) == (CHAT, 200)
    assert written["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in log


async def test_without_tls_http_2_is_spoken_too(edge: Edge) -> None:
    async with httpx.AsyncClient(http1=False, http2=True, timeout=PATIENCE_S) as http:
        answer = await http.post(f"{edge.root}{CHAT}", content=b"{}")
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
