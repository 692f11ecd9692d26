"""The admin port over real HTTP: alive, ready, and why not."""

import asyncio
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client import REGISTRY, Gauge

from baton.runtime import admin


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_a_service_is_ready_until_it_has_a_reason_not_to_be() -> None:
    reasons = [""]
    port = admin.start_admin("127.0.0.1:0", lambda: reasons[0])
    assert await asyncio.to_thread(get, port, "/readyz") == (200, "ok\n")
    reasons[0] = "the engine core has not moved for 2.0 s"
    assert await asyncio.to_thread(get, port, "/readyz") == (503, f"{reasons[0]}\n")
    assert (await asyncio.to_thread(get, port, "/livez"))[0] == 200
    assert (await asyncio.to_thread(get, port, "/nothing"))[0] == 404


async def test_a_stuck_event_loop_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    port = admin.start_admin("127.0.0.1:0")
    assert await asyncio.to_thread(get, port, "/livez") == (200, "ok\n")
    monkeypatch.setattr(admin, "LIVE_TIMEOUT_S", 0.1)
    answers: list[tuple[int, str]] = []
    asking = threading.Thread(target=lambda: answers.append(get(port, "/livez")))
    asking.start()
    asking.join(60)  # the loop is stuck in here
    assert answers == [(503, "the event loop is stuck\n")]
    assert (await asyncio.to_thread(get, port, "/metrics"))[0] == 200


async def test_metrics_have_the_same_names_in_openmetrics() -> None:
    """A real Prometheus asks as here; the library writes `vllm_` for `vllm:` then, if it is let."""
    gauge = Gauge("vllm:num_named", "A name as engines have them.")
    port = admin.start_admin("127.0.0.1:0")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics",
        headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"},
    )

    def ask() -> tuple[str, str]:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    kind, page = await asyncio.to_thread(ask)
    REGISTRY.unregister(gauge)
    assert kind.startswith("application/openmetrics-text; version=1.0.0;")
    assert page.endswith("# EOF\n")
    assert "\nvllm:num_named 0.0\n" in page
    assert "vllm_" not in page


async def test_a_page_is_made_on_the_services_own_loop() -> None:
    threads: list[int] = []

    def page(rest: str) -> bytes | None:
        threads.append(threading.get_ident())
        return b"[]"

    port = admin.start_admin("127.0.0.1:0", pages={"/requests": page})
    assert await asyncio.to_thread(get, port, "/requests") == (200, "[]")
    assert threads == [threading.get_ident()]


async def test_a_page_gets_the_rest_of_its_path_and_may_not_have_it() -> None:
    def page(rest: str) -> bytes | None:
        return None if rest == "nobody" else rest.encode()

    port = admin.start_admin("127.0.0.1:0", pages={"/explain": page})
    assert await asyncio.to_thread(get, port, "/explain/a%20b") == (200, "a b")
    assert (await asyncio.to_thread(get, port, "/explain/nobody"))[0] == 404


async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin._Handler, "timeout", 0.05)
    port = admin.start_admin("127.0.0.1:0")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert await asyncio.to_thread(silent.recv, 1) == b""


async def test_connections_beyond_the_bound_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", 1)
    port = admin.start_admin("127.0.0.1:0")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as first:
        first.sendall(b"GET /livez HTTP/1.1\r\n")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as second:
            assert await asyncio.to_thread(second.recv, 1) == b""
        first.sendall(b"\r\n")
        assert (await asyncio.to_thread(first.recv, 15)).startswith(b"HTTP/1.0 200 OK")
