"""Tokens of an issuer: what is accepted, what is refused, and how its keys are followed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import AuthenticationFailed, Unavailable
from services.gateway.identity.issuer_keys import MAX_WAIT_S, MIN_REFRESH_S, REFRESH_S
from services.gateway.identity.tokens import CHECKED_S, Tokens, tokens_of
from services.gateway.settings import GatewaySettings
from services.gateway.tenants.principal import Principal, VouchedIdentity

ISSUER, AUDIENCE = "https://login.example", "baton"
JWKS = "https://login.example/keys"


class Issuer:
    """An issuer of tokens with a key of its own, which may be away."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self.add("k1")
        self.num_fetches = 0
        self.wait_s = 0.01
        self.is_away = False

    def add(self, key_id: str) -> None:
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1())

    async def fetch(self, url: str) -> bytes:
        self.num_fetches += 1
        await asyncio.sleep(self.wait_s)
        if self.is_away:
            raise OSError("no route")
        if url.endswith("/openid-configuration"):
            return msgspec.json.encode({"issuer": ISSUER, "jwks_uri": JWKS})
        assert url == JWKS
        listed = [
            {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}
            for key_id, key in self.keys.items()
        ]
        unusable = [{"kty": "oct", "k": "AAAA"}, {"kid": "no kty"}, {"kty": "RSA", "n": 5}, "k"]
        return msgspec.json.encode({"keys": [*listed, *unusable]})

    def token(self, key_id: str = "k1", **changes: Any) -> str:
        now_s = self.clock.unix()
        claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": now_s + 300, "tenant": "acme", **changes}
        given = {name: value for name, value in claims.items() if value is not None}
        headers = {"kid": key_id} if key_id else None
        key = self.keys[key_id or "k1"]
        return jwt.encode(given, key, algorithm="ES256", headers=headers)

    def tokens(self, **changes: Any) -> Tokens:
        fields: dict[str, Any] = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **changes}
        return tokens_of(settings(**fields), self.fetch, self.clock)


def settings(**fields: Any) -> GatewaySettings:
    peers = dict.fromkeys(("quota", "tokenizer", "router"), ("127.0.0.1:1",))
    return GatewaySettings(secret_file=Path("secret"), **peers, **fields)


def with_issuer(scenario: Callable[[Issuer], Any]) -> None:
    clock = VirtualClock()
    run_virtual(scenario(Issuer(clock)), clock)


async def problem_of(tokens: Tokens, token: str) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        await tokens.identity(token)
    assert caught.value.row.http_status == 401
    return caught.value.message


@pytest.mark.parametrize("jwks_url", ["", JWKS])
def test_a_token_vouches_for_the_identity_in_its_claim(jwks_url: str) -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens(jwt_jwks_url=jwks_url)
        assert await tokens.identity(issuer.token()) == VouchedIdentity("jwt:acme")
        assert await tokens.identity(issuer.token(key_id="")) == VouchedIdentity("jwt:acme")
        assert issuer.num_fetches == (1 if jwks_url else 2)

    with_issuer(scenario)


def test_a_claim_may_name_the_models() -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens(jwt_models_claim="models")
        named = await tokens.identity(issuer.token(models=["a", "b"]))
        spaced = await tokens.identity(issuer.token(models="a b", jti="1"))
        assert named == spaced == VouchedIdentity("jwt:acme", ("a", "b"))
        assert (await tokens.identity(issuer.token(jti="2"))).models is None
        assert "models" in await problem_of(tokens, issuer.token(models=[1]))

    with_issuer(scenario)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"exp": 1_799_999_000}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "times"),
        ({"nbf": 1_800_001_000}, "not valid yet"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "other"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"tenant": None}, "claim tenant"),
        ({"tenant": ["acme"]}, "claim tenant"),
    ],
)
def test_a_token_that_is_not_for_us_is_refused(changes: dict[str, Any], problem: str) -> None:
    async def scenario(issuer: Issuer) -> None:
        assert problem in await problem_of(issuer.tokens(), issuer.token(**changes))

    with_issuer(scenario)


def test_a_token_that_a_key_of_the_issuer_did_not_sign_is_refused() -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens()
        claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": 2**40, "tenant": "acme"}
        unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": "k1"})  # type: ignore[arg-type]
        by_secret = jwt.encode(claims, "s" * 32, algorithm="HS256", headers={"kid": "k1"})
        by_other = jwt.encode(
            claims, ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "k1"}
        )
        assert "algorithm" in await problem_of(tokens, unsigned)
        assert "algorithm" in await problem_of(tokens, by_secret)
        assert "ignature" in await problem_of(tokens, by_other)
        head, body, signature = issuer.token().split(".")
        for wrong in (
            f"{head}.{body}.",
            f"{head}.{body[:-2]}.{signature}",
            "eyJ.eyJ.x",
            "eyJ" * 9000,
        ):
            await problem_of(tokens, wrong)

    with_issuer(scenario)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS1"])
def test_only_public_key_algorithms_can_be_allowed(algorithm: str) -> None:
    async def scenario(issuer: Issuer) -> None:
        with pytest.raises(ValueError, match="jwt_algorithms"):
            issuer.tokens(jwt_algorithms=(algorithm,))

    with_issuer(scenario)


def test_a_new_key_is_fetched_when_a_token_names_it_but_not_for_each_wrong_one() -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens(jwt_jwks_url=JWKS)
        await tokens.identity(issuer.token())
        issuer.add("k2")
        await asyncio.sleep(MIN_REFRESH_S)
        await asyncio.gather(*(tokens.identity(issuer.token("k2", jti=str(n))) for n in range(5)))
        assert issuer.num_fetches == 2
        issuer.add("k3")
        stranger = issuer.token("k3")
        del issuer.keys["k3"]
        for _ in range(20):
            assert "no such key" in await problem_of(tokens, stranger)
        assert issuer.num_fetches == 2

    with_issuer(scenario)


def test_the_keys_are_followed_in_the_background_and_outlive_an_issuer_that_is_away() -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens(jwt_jwks_url=JWKS)
        issuer.is_away = True
        with pytest.raises(Unavailable):
            await tokens.identity(issuer.token())
        following = asyncio.ensure_future(tokens.run())
        await asyncio.sleep(1)
        issuer.is_away = False
        await asyncio.sleep(MIN_REFRESH_S)
        assert await tokens.identity(issuer.token())
        old = issuer.token()
        issuer.is_away = True
        await asyncio.sleep(REFRESH_S + 1)
        assert await tokens.identity(issuer.token())
        issuer.keys, issuer.is_away = {}, False
        issuer.add("k2")
        await asyncio.sleep(REFRESH_S + 1)
        assert "no such key" in await problem_of(tokens, old)
        following.cancel()

    with_issuer(scenario)


def test_no_request_waits_long_for_an_issuer_that_is_slow() -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens(jwt_jwks_url=JWKS)
        old = issuer.token()
        await tokens.identity(old)
        await asyncio.sleep(MIN_REFRESH_S)
        issuer.add("k2")
        issuer.wait_s = 9.0
        began_s = issuer.clock.now()
        with pytest.raises(Unavailable):
            await tokens.identity(issuer.token("k2"))
        assert issuer.clock.now() - began_s <= MAX_WAIT_S
        assert await tokens.identity(issuer.token(jti="1"))
        await asyncio.sleep(issuer.wait_s)
        assert await tokens.identity(issuer.token("k2"))

    with_issuer(scenario)


def test_a_checked_token_is_not_good_for_longer_than_it_says() -> None:
    async def scenario(issuer: Issuer) -> None:
        tokens = issuer.tokens(jwt_leeway_s=0.0)
        token = issuer.token(exp=issuer.clock.unix() + CHECKED_S / 2)
        assert tokens.checked(token) is None
        assert await tokens.identity(token) == tokens.checked(token)
        await asyncio.sleep(CHECKED_S / 2 + 1)
        assert tokens.checked(token) is None
        assert "expired" in await problem_of(tokens, token)
        other = issuer.token()
        assert await tokens.identity(other) == tokens.checked(other)
        await asyncio.sleep(CHECKED_S)
        assert tokens.checked(other) is None

    with_issuer(scenario)


@pytest.mark.parametrize(
    ("allowed", "named", "expected"),
    [
        ((), None, ()),
        (("a",), None, ("a",)),
        ((), ("a", "b"), ("a", "b")),
        (("a", "c"), ("a", "b"), ("a",)),
        (("c",), ("a", "b"), ("",)),
        ((), (), ("",)),
    ],
)
def test_a_token_can_only_narrow_the_models_of_its_key(
    allowed: tuple[str, ...], named: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    assert Principal("acme", "k", allowed).narrowed(named).allowed_models == expected


def test_an_issuer_without_an_audience_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="jwt_audience"):
        settings(jwt_issuer=ISSUER)
