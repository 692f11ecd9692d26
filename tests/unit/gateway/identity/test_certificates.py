"""Client certificates that the edge tells of: from where it is believed, and how it is read."""

import json
from typing import Any

import pytest

from baton.wire.key_registry import identity_digest
from services.gateway.app import App
from services.gateway.http.request import Headers
from services.gateway.identity.certificates import Certificates
from services.gateway.tenants.principal import VouchedIdentity
from tests.unit.gateway.fakes import SECRET, Fleet, simulate
from tests.unit.gateway.test_app import CHAT, Client, serve

EDGE = ("10.1.2.3", 5000)
URI = "spiffe://example/acme"
ONE = f'Hash=ab12;Subject="CN=ac\\"me,O=x;y";URI={URI};DNS=acme.example;DNS=other.example'


def told(value: str, client: Any = EDGE, name: str = "uri") -> VouchedIdentity | None:
    headers = Headers([(b"x-forwarded-client-cert", value.encode())])
    return Certificates(["10.1.0.0/16", "::1"], name).identity({"client": client}, headers)


@pytest.mark.parametrize(
    ("name", "expected"), [("uri", URI), ("dns", "acme.example"), ("subject", 'CN=ac"me,O=x;y')]
)
def test_a_certificate_is_known_by_the_field_of_the_setting(name: str, expected: str) -> None:
    assert told(ONE, name=name) == VouchedIdentity(f"cert:{expected}")


@pytest.mark.parametrize("client", [("10.2.0.1", 1), ("127.0.0.1", 1), ("/socket", 0), None])
def test_nobody_but_the_edge_is_believed(client: Any) -> None:
    assert told(ONE, client) is None


@pytest.mark.parametrize(
    "value", ["", "Hash=ab", "URI=", f"URI={URI},URI=other", 'URI="open', f"={URI}", "x"]
)
def test_a_header_that_does_not_name_one_certificate_names_none(value: str) -> None:
    assert told(value) is None


def test_networks_that_are_not_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        Certificates(["10.1"], "uri")


@pytest.mark.parametrize(
    ("identity", "client", "status"),
    [
        (f"cert:{URI}", EDGE, 200),
        ("cert:stranger", EDGE, 401),
        (f"cert:{URI}", ("9.9.9.9", 1), 401),
    ],
)
def test_a_certificate_of_the_registry_needs_no_key(
    identity: str, client: Any, status: int
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.digests.add(identity_digest(SECRET, identity))
        certificates = Certificates(["10.1.0.0/16"], "uri")
        app = App(
            fleet.gateway,
            max_body_bytes=1_000_000,
            max_open_requests=9,
            deadline_s=60.0,
            certificates=certificates,
        )
        asked = Client(CHAT | {"stream": False})
        asked.scope["client"] = client
        asked.scope["headers"] = [(b"x-forwarded-client-cert", ONE.encode())]
        await serve(app, asked)
        assert asked.status == status
        if status == 200:
            assert json.loads(asked.body)["choices"]

    simulate(scenario)
