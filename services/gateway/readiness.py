"""The readiness of this gateway: the reasons for which balancers must not send it requests.

Decided from what is known already, so that asking costs nothing. Quota is a soft dependency: all
gateways lose it together, and a gateway that knows keys serves on without it. It says so, and
stays ready.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import BatonError
from services.gateway.clients.protocols import TokenizerClient
from services.gateway.routing.models import ModelDirectory
from services.gateway.routing.routers import Routers
from services.gateway.tenants.auth import Authenticator
from services.gateway.tenants.quota_outage import GuardedQuota

_PROBE_TIMEOUT_S = 0.5
_PROBE_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 0.1
# A service that answered within this time counts as reachable. All gateways ask the same services,
# and a busy moment of one must not take all gateways out of rotation together.
REACHED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class ReadinessState:
    """The reasons not to send requests, and those for which it serves with limits of its own."""

    unready: list[str]
    degraded: list[str]


class Readiness:
    """Follows the services that every request needs, in `run`. `draining`: this gateway leaves."""

    def __init__(
        self,
        quota: GuardedQuota,
        tokenizer: TokenizerClient,
        directory: ModelDirectory,
        routers: Routers,
        authenticator: Authenticator,
        clock: Clock,
    ) -> None:
        self.draining = False
        self._quota = quota
        self._authenticator = authenticator
        self._probes = {"quota": quota.probe, "tokenizer": tokenizer.probe}
        self._directory = directory
        self._routers = routers
        self._clock = clock
        self._reached_s: dict[str, float] = {}

    async def run(self) -> None:
        """Probe the services until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, probe in self._probes.items():
                tasks.create_task(self._keep_probing(name, probe))

    def state(self) -> ReadinessState:
        """The readiness as far as it is known now."""
        unready = ["draining"] if self.draining else []
        degraded: list[str] = []
        if not self._is_reached("quota") or self._quota.is_open:
            can_serve = self._authenticator.knows_keys
            (degraded if can_serve else unready).append("quota service unreachable")
        if not self._is_reached("tokenizer"):
            unready.append("tokenizer service unreachable")
        # A gateway that has heard of workers once can serve without a router
        # (routing/fallback_picker.py).
        if not self._directory.num_ready_models:
            heard = self._routers.is_any_heard
            unready.append("no model has a ready worker" if heard else "router unreachable")
        return ReadinessState(unready, degraded)

    def _is_reached(self, name: str) -> bool:
        return self._clock.now() - self._reached_s.get(name, -math.inf) <= REACHED_WITHIN_S

    async def _keep_probing(self, name: str, probe: Callable[[float], Awaitable[None]]) -> None:
        while True:
            try:
                await probe(_PROBE_TIMEOUT_S)
            except BatonError:
                await asyncio.sleep(_RETRY_INTERVAL_S)
            else:
                self._reached_s[name] = self._clock.now()
                await asyncio.sleep(_PROBE_INTERVAL_S)
