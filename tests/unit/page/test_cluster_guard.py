"""Who is let through to a release's page, and what nobody is."""

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from baton.page.fleet_source import Fleet, Service
from baton.page.fleet_watch import FleetWatch
from baton.page.quota_client import QuotaClient
from baton.page.reads import Mode, Reads, Sources
from services.page.app import application
from services.page.sessions import MAX_WRONG, Sessions

TOKEN = "a-token-of-twenty-chars"
BASE = "http://page.test:8080"
OWN = {"origin": BASE}


class NoPods:
    """A release whose pods have no ports that could be asked."""

    def fleet(self) -> Fleet:
        return Fleet("baton in default", [Service("baton-redis-0", "redis")])


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that has not logged in."""
    source = NoPods()
    spans = tmp_path / "spans.db"
    watch = FleetWatch(source, spans)
    quota = QuotaClient("", None)
    reads = Reads(Sources(source, spans), watch, quota, Mode(False, ("fleet", "requests")))
    ids = itertools.count()
    sessions = Sessions(lambda: TOKEN, 3600.0, lambda: 0.0, lambda: f"id-{next(ids)}")
    transport = httpx.ASGITransport(application(reads, sessions, "baton-page-baton"))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client
    watch.close()
    await quota.close()


async def login(visitor: httpx.AsyncClient, token: str = TOKEN, **headers: str) -> httpx.Response:
    return await visitor.post("/api/login", json={"token": token}, headers=OWN | headers)


async def test_a_visitor_without_a_session_sees_the_login_and_nothing_of_the_release(
    visitor: httpx.AsyncClient,
) -> None:
    led = await visitor.get("/")
    assert (led.status_code, led.headers["location"]) == (303, "/login")
    assert "Log in" in (await visitor.get("/login")).text
    for path in ("mode", "fleet", "requests", "requests/req_1", "admin/keys", "no-such-thing"):
        refused = await visitor.get(f"/api/{path}")
        assert (path, refused.status_code) == (path, 401)
        assert "baton-redis-0" not in refused.text
    refused = await visitor.get("/api/fleet", headers={"cookie": "baton-page-baton=id-0"})
    assert refused.status_code == 401


@pytest.mark.parametrize("host", ["a?", "a#", "a/x?", "page.test/login?", "[", "", "a/api", "\\"])
async def test_no_host_makes_a_path_look_like_another_one(
    visitor: httpx.AsyncClient, host: str
) -> None:
    for path in ("/api/fleet", "/api/admin/keys"):
        assert (await visitor.get(path, headers={"host": host})).status_code == 401
    assert (await visitor.get("/", headers={"host": host})).status_code == 303
    refused = await visitor.post("/api/fleet", headers={"host": host})
    assert refused.status_code == 405


async def test_the_token_opens_a_session_that_scripts_and_other_sites_cannot_use(
    visitor: httpx.AsyncClient,
) -> None:
    answer = await login(visitor)
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {each.strip() for each in cookie.split(";")}
    assert "Secure" not in cookie
    look = (await visitor.get("/api/fleet")).json()
    assert (look["stack"], list(look["lives"])) == ("baton in default", ["baton-redis-0"])
    mode = (await visitor.get("/api/mode")).json()
    assert mode == {"is_local": False, "views": ["fleet", "requests"]}
    assert (await visitor.get("/")).status_code == 200
    assert (await visitor.post("/api/logout", json={}, headers=OWN)).status_code == 200
    visitor.cookies.set("baton-page-baton", "id-0")
    assert (await visitor.get("/api/fleet")).status_code == 401


async def test_behind_tls_the_cookie_goes_over_tls_alone(visitor: httpx.AsyncClient) -> None:
    https = {"origin": BASE.replace("http:", "https:"), "x-forwarded-proto": "https"}
    assert "Secure" in (await login(visitor, **https)).headers["set-cookie"]


async def test_a_wrong_token_opens_nothing_and_too_many_of_them_are_refused_unread(
    visitor: httpx.AsyncClient,
) -> None:
    for _ in range(MAX_WRONG):
        refused = await login(visitor, "wrong")
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
    refused = await login(visitor)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/api/login", "/api/logout"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {},
        {**OWN, "content-type": "text/plain"},
        {**OWN, "content-type": "application/x-www-form-urlencoded"},
    ],
)
async def test_another_site_neither_logs_in_nor_out(
    visitor: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    body = json.dumps({"token": TOKEN}).encode()
    kind = {"content-type": "application/json"}
    refused = await visitor.post(path, content=body, headers=kind | headers)
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 7}', b"{", b"x" * 5000])
async def test_a_login_that_is_no_login_is_refused(visitor: httpx.AsyncClient, body: bytes) -> None:
    kind = {"content-type": "application/json"}
    refused = await visitor.post("/api/login", content=body, headers=OWN | kind)
    assert refused.status_code in (400, 403, 413)


async def test_a_visitor_changes_nothing_whatever_the_path(visitor: httpx.AsyncClient) -> None:
    await login(visitor)
    paths = (
        "/", "/api/fleet", "/api/admin/keys", "/api/admin/keys/1", "/api/admin/tenants/a/limits",
        "/api/chat", "/api/crowd", "/api/workers/decode-1/kill", "/api/logs/x", "/api/no-such",
        "/api/login/", "/API/login",
    )  # fmt: skip
    methods = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
    for path, method in itertools.product(paths, methods):
        refused = await visitor.request(method, path, json={}, headers=OWN)
        assert (path, method, refused.status_code) == (path, method, 405)
        assert refused.headers["allow"] == "GET, HEAD"
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert (await visitor.request(method, "/api/login", headers=OWN)).status_code == 405


async def test_what_only_a_local_page_has_is_not_there(visitor: httpx.AsyncClient) -> None:
    await login(visitor)
    for path in ("logs/decode-1", "models", "chat", "crowd", "workers/decode-1/kill"):
        assert (path, (await visitor.get(f"/api/{path}")).status_code) == (path, 404)
    assert (await visitor.get("/api/admin/keys")).status_code == 503


async def test_every_answer_has_the_strict_headers(visitor: httpx.AsyncClient) -> None:
    answers = [
        await visitor.get(path) for path in ("/", "/login", "/login.js", "/api/fleet", "/no")
    ]
    answers += [await login(visitor), await visitor.put("/api/fleet"), await visitor.get("/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; base-uri 'none'; form-action 'self'")
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_errors_are_json_with_a_message(visitor: httpx.AsyncClient) -> None:
    told = msgspec.json.decode((await visitor.get("/api/fleet")).content)
    assert told == {"error": {"message": "log in first"}}
