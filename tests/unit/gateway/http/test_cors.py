"""Pages of other origins: preflights, allowed answers, and nothing at all when it is off."""

from typing import Any

import pytest

from services.gateway.http.cors import with_cors
from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.test_app import CHAT, Client, app_of, serve

PAGES = ("https://chat.example", "http://localhost:*", "http://[::1]:*")


def preflight(origin: str, method: str = "POST") -> Client:
    client = Client({}, "/v1/chat/completions", "OPTIONS")
    client.scope["headers"] = [
        (b"origin", origin.encode()),
        (b"access-control-request-method", method.encode()),
        (b"access-control-request-headers", b"authorization,content-type,x-stainless-os"),
    ]
    return client


def asked(origins: tuple[str, ...], client: Client) -> Client:
    async def scenario(fleet: Fleet) -> None:
        await with_cors(app_of(fleet), origins)(client.scope, client.receive, client.send)

    simulate(scenario)
    return client


@pytest.mark.parametrize(
    "origin",
    ["https://chat.example", "http://localhost", "http://localhost:5173", "http://[::1]:1"],
)
def test_a_page_of_an_allowed_origin_may_ask_with_any_header(origin: str) -> None:
    answer = asked(PAGES, preflight(origin))
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "http://chat.example",
        "https://chat.example:444",
        "https://chat.example.evil",
        "http://localhost:1.evil",
        "null",
    ],
)
def test_a_page_of_another_origin_may_not(origin: str) -> None:
    answer = asked(PAGES, preflight(origin))
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("origins", "allowed"), [(PAGES, PAGES[0]), (("*",), "*")])
@pytest.mark.parametrize("fields", [CHAT, {"model": "nothing"}])
def test_an_allowed_page_reads_ids_and_limits_of_answers_and_errors(
    origins: tuple[str, ...], allowed: str, fields: dict[str, Any]
) -> None:
    client = Client(fields)
    client.scope["headers"].append((b"origin", b"https://chat.example"))
    answer = asked(origins, client)
    assert answer.headers["access-control-allow-origin"] == allowed
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    some = {"x-request-id", "x-ratelimit-remaining-tokens", "retry-after", "original-request"}
    some |= {"request-id", "anthropic-ratelimit-tokens-reset"}
    assert some <= set(exposed)
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["x-request-id"]


def test_without_the_setting_nothing_changes() -> None:
    async def scenario(fleet: Fleet) -> None:
        app = app_of(fleet)
        assert with_cors(app, ()) is app
        client = preflight(PAGES[0])
        await serve(app, client)
        assert client.status == 405
        assert not any(name.startswith("access-control") for name in client.headers)

    simulate(scenario)


@pytest.mark.parametrize("origin", ["chat.example", "https://a/b", "https://a*", "http://*:80", ""])
def test_an_entry_that_is_not_an_origin_is_refused(origin: str) -> None:
    async def app(*_: Any) -> None:
        raise AssertionError("it is not asked")

    with pytest.raises(ValueError, match="is not an origin"):
        with_cors(app, (origin,))
