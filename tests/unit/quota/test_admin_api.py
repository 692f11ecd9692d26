"""The admin API over its real home and registry, with Redis in this process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.keys.homes import FileHome
from baton.wire import failures, key_registry
from baton.wire.v1 import quota_pb2
from services.quota.admin.api import MAX_BODY_BYTES, AdminApi
from services.quota.ledger import Ledger
from services.quota.registry import Registry
from services.quota.store import RedisStore
from tests.unit.quota.conftest import FailingRedis, read_inline

SECRET = b"s" * 32
TOKEN = "an-admin-token-of-24-chars"


@dataclass
class Bench:
    """The API's client, and what lies behind it."""

    http: httpx.AsyncClient
    redis: FailingRedis
    home: FileHome
    ledger: Ledger
    token: Path

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = await self.http.request(method, f"/admin/v1/{path}", json=body)
        return answer.status_code, answer.json()

    async def knows(self, key: str) -> quota_pb2.AuthenticateResponse | None:
        digest = key_registry.key_digest(SECRET, key)
        request = quota_pb2.AuthenticateRequest(key_digest=digest)
        try:
            return await self.ledger.authenticate(request)
        except failures.AuthenticationFailed:
            return None


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    (tmp_path / "secret").write_text(SECRET.hex())
    (tmp_path / "token").write_text(TOKEN + "\n")
    redis = FailingRedis()
    store = RedisStore(redis)
    file = tmp_path / "registry.jsonl"
    registry = Registry(store, [(file, read_inline)])
    home = FileHome(file)
    api = AdminApi(home, registry, store, tmp_path / "token", tmp_path / "secret")
    transport = httpx.ASGITransport(app=api.app())
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://admin", headers=headers
    ) as http:
        yield Bench(http, redis, home, Ledger(store, registry), tmp_path / "token")
    await store.close()


async def test_a_key_works_from_its_creation_to_its_revocation(bench: Bench) -> None:
    limits = {"requests_per_minute": 3}
    status, made = await bench.call("POST", "keys", {"tenant": "acme", "limits": limits})
    assert (status, made["tenant"], made["limits"], made["in_effect"]) == (
        201,
        "acme",
        limits,
        True,
    )
    principal = await bench.knows(made["key"])
    assert principal
    assert principal.limits.requests_per_minute == 3
    path = f"keys/{made['key_id']}"
    status, changed = await bench.call("PATCH", path, {"limits": {"tokens_per_minute": 9}})
    assert (status, changed["limits"]) == (200, {"tokens_per_minute": 9})
    principal = await bench.knows(made["key"])
    assert principal
    assert principal.limits.tokens_per_minute == 9
    assert (await bench.call("DELETE", path))[1]["revoked"]
    assert await bench.knows(made["key"]) is None
    assert (await bench.call("DELETE", path))[0] == 200
    assert (await bench.call("PATCH", path, {"priority": 1}))[0] == 409


async def test_neither_key_nor_digest_is_shown_again(bench: Bench) -> None:
    _, made = await bench.call("POST", "keys", {"tenant": "acme"})
    await bench.call("POST", "keys", {"tenant": "other"})
    status, listed = await bench.call("GET", "keys?tenant=acme")
    assert status == 200
    [shown] = listed["keys"]
    assert shown["key_id"] == made["key_id"]
    assert not {"key", "digest", "op"} & set(shown)
    assert (await bench.call("GET", f"keys/{made['key_id']}")) == (200, shown)


async def test_limits_of_tenants_and_organisations(bench: Bench) -> None:
    path = "tenants/bigco/search/limits"
    status, made = await bench.call("PUT", path, {"concurrency": 2})
    assert (status, made["level"], made["name"]) == (200, "tenant", "bigco/search")
    assert (await bench.call("GET", path))[1]["limits"] == {"concurrency": 2}
    assert (await bench.call("PUT", "organisations/bigco/limits", {}))[0] == 200
    assert (await bench.call("GET", "tenants"))[1] == {"tenants": ["bigco/search"]}
    assert (await bench.call("GET", "organisations"))[1] == {"organisations": ["bigco"]}
    assert (await bench.call("PUT", "organisations/a/b/limits", {}))[0] == 400


async def test_what_is_spent_of_budgets_is_told_by_window(bench: Bench) -> None:
    budget = {"budget_tokens": 500, "budget_period": "day"}
    _, made = await bench.call("POST", "keys", {"tenant": "acme", "limits": budget})
    reservation = quota_pb2.ReserveRequest(
        request_id="r1", tenant="acme", key_id=made["key_id"], num_output_tokens=90
    )
    await bench.ledger.reserve(reservation)
    status, told = await bench.call("GET", "usage?tenant=acme")
    assert status == 200
    [window] = told["windows"]
    assert window["owner"] == f"key:{made['key_id']}"
    assert (window["spent_tokens"], window["held_tokens"], window["budget_tokens"]) == (0, 90, 500)
    _, earlier = await bench.call("GET", "usage?tenant=acme&day=2026-01-31")
    assert [row["window"] for row in earlier["windows"]] == ["d20260131"]
    assert [row["held_tokens"] for row in earlier["windows"]] == [0]
    # A tenant without a slash has no organisation, also where one has its name.
    assert (await bench.call("PUT", "organisations/acme/limits", budget))[0] == 200
    [same] = (await bench.call("GET", "usage?tenant=acme"))[1]["windows"]
    assert same["owner"] == window["owner"]
    assert (await bench.call("GET", "usage"))[0] == 400
    assert (await bench.call("GET", "usage?tenant=acme&day=soon"))[0] == 400


@pytest.mark.parametrize("shown", ["", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
async def test_without_the_token_nothing_is_told(bench: Bench, shown: str) -> None:
    bench.http.headers["authorization"] = shown
    for method, path in (("GET", "keys"), ("POST", "keys"), ("GET", "usage"), ("GET", "tenants")):
        assert (await bench.call(method, path))[0] == 401
    assert not bench.home.path.exists()


async def test_a_new_token_counts_at_once_and_an_empty_one_is_none(bench: Bench) -> None:
    bench.token.write_text("another-admin-token-of-some-length")
    assert (await bench.call("GET", "keys"))[0] == 401
    bench.http.headers["authorization"] = "Bearer another-admin-token-of-some-length"
    assert (await bench.call("GET", "keys"))[0] == 200
    for useless in ("", "short"):
        bench.token.write_text(useless)
        bench.http.headers["authorization"] = f"Bearer {useless}"
        assert (await bench.call("GET", "keys"))[0] == 503


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tenant": "no spaces"},
        {"tenant": "acme", "limits": {"rpm": 3}},
        {"tenant": "acme", "limits": {"hard_budget": True}},
        {"tenant": "acme", "priority": 256},
        {"tenant": "acme", "unknown": 1},
        [],
    ],
)
async def test_a_malformed_key_is_refused_and_not_written(bench: Bench, body: Any) -> None:
    status, answer = await bench.call("POST", "keys", body)
    assert status == 400
    assert answer["error"]["message"]
    assert not bench.home.path.exists()


async def test_a_body_has_a_size(bench: Bench) -> None:
    body = {"tenant": "acme", "allowed_models": ["x" * MAX_BODY_BYTES]}
    assert (await bench.call("POST", "keys", body))[0] == 413


async def test_an_unknown_key_is_not_found(bench: Bench) -> None:
    for method, body in (("GET", None), ("PATCH", {"priority": 1}), ("DELETE", None)):
        assert (await bench.call(method, "keys/key_none", body))[0] == 404


async def test_without_redis_a_key_is_written_down_and_counts_when_redis_is_back(
    bench: Bench,
) -> None:
    bench.redis.is_away = True
    status, made = await bench.call("POST", "keys", {"tenant": "acme"})
    assert (status, made["in_effect"]) == (201, False)
    bench.redis.is_away = False
    assert await bench.knows(made["key"])
