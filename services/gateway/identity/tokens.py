"""JSON web tokens (RFC 7519) of one issuer as a way in: a claim of a token names its identity.

A token must be signed with a public-key algorithm of the settings, by a key of the issuer, for our
audience, and not be expired. A verified token is good for CHECKED_S without another look at its
signature, and never longer than it says itself.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jwt

from baton.system.clock import Clock
from baton.wire.failures import AuthenticationFailed
from baton.wire.key_registry import TOKEN_IDENTITY
from services.gateway.identity.issuer_keys import Fetch, IssuerKeys
from services.gateway.settings import GatewaySettings
from services.gateway.tenants.principal import VouchedIdentity

# Public keys only: a secret that signs would be one that we have.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
CHECKED_S = 60.0
MAX_CHECKED = 10_000
MAX_TOKEN_CHARS = 8192
# The times are compared with our clock below.
_OPTIONS: Any = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


@dataclass(frozen=True, slots=True)
class _Checked:
    identity: VouchedIdentity
    until_s: float


class Tokens:
    """The tokens of one issuer."""

    def __init__(self, settings: GatewaySettings, keys: IssuerKeys, clock: Clock) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._checked: OrderedDict[bytes, _Checked] = OrderedDict()

    async def run(self) -> None:
        """Follow the issuer's keys until cancelled."""
        await self._keys.run()

    def checked(self, token: str) -> VouchedIdentity | None:
        """The identity of a token that was checked a moment ago; None when it was not."""
        checked = self._checked.get(_digest(token))
        return checked.identity if checked and self._clock.unix() < checked.until_s else None

    async def identity(self, token: str) -> VouchedIdentity:
        """The identity that a token vouches for. Raises AuthenticationFailed, Unavailable."""
        checked = self._checked[_digest(token)] = await self._check(token)
        self._checked.move_to_end(_digest(token))
        if len(self._checked) > MAX_CHECKED:
            self._checked.popitem(last=False)
        return checked.identity

    async def _check(self, token: str) -> _Checked:
        if len(token) > MAX_TOKEN_CHARS:
            raise _refusal(f"it is longer than {MAX_TOKEN_CHARS} characters")
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in settings.jwt_algorithms:
                raise _refusal(f"its algorithm is not one of {', '.join(settings.jwt_algorithms)}")
            key = await self._keys.key(header.get("kid"))
            if key is None:
                raise _refusal("its issuer has no such key")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[header["alg"]],
                audience=settings.jwt_audience,
                issuer=settings.jwt_issuer,
                options=_OPTIONS,
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise _refusal(str(error)) from error
        expires_s = self._check_times(claims)
        until_s = min(expires_s, self._clock.unix() + CHECKED_S)
        return _Checked(self._identity_of(claims), until_s)

    def _check_times(self, claims: dict[str, Any]) -> float:
        """The end of a token's time. Raises AuthenticationFailed."""
        now_s, leeway_s = self._clock.unix(), self._settings.jwt_leeway_s
        expires_s, begins_s = claims["exp"], claims.get("nbf", 0)
        if not isinstance(expires_s, int | float) or not isinstance(begins_s, int | float):
            raise _refusal("its times are not numbers")
        if expires_s + leeway_s <= now_s:
            raise _refusal("it has expired")
        if begins_s - leeway_s > now_s:
            raise _refusal("it is not valid yet")
        return expires_s + leeway_s

    def _identity_of(self, claims: dict[str, Any]) -> VouchedIdentity:
        tenant_claim, models_claim = (
            self._settings.jwt_tenant_claim,
            self._settings.jwt_models_claim,
        )
        tenant = claims.get(tenant_claim)
        if not isinstance(tenant, str) or not tenant:
            raise _refusal(f"its claim {tenant_claim} is not a name")
        models = claims.get(models_claim) if models_claim else None
        if models is None:
            return VouchedIdentity(TOKEN_IDENTITY + tenant)
        if isinstance(models, str):
            models = models.split()
        if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
            raise _refusal(f"its claim {models_claim} is not a list of names")
        return VouchedIdentity(TOKEN_IDENTITY + tenant, tuple(models))


def tokens_of(settings: GatewaySettings, fetch: Fetch, clock: Clock) -> Tokens:
    """The tokens that the settings allow. Raises ValueError."""
    for algorithm in settings.jwt_algorithms:
        if algorithm not in ALGORITHMS:
            raise ValueError(f"jwt_algorithms: {algorithm!r} is not one of {', '.join(ALGORITHMS)}")
    keys = IssuerKeys(settings.jwt_issuer, settings.jwt_jwks_url, fetch, clock)
    return Tokens(settings, keys, clock)


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


def _refusal(problem: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"the token is not valid: {problem}")
