"""The readiness of this gateway: the reasons for which balancers must not send it requests."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from baton.system.clock import Clock
from baton.wire.failures import BatonError
from services.gateway.clients.protocols import QuotaClient, TokenizerClient
from services.gateway.routing.models import ModelDirectory
from services.gateway.routing.routers import Routers

_PROBE_TIMEOUT_S = 0.5
# A service that answered within this time counts as reachable. All gateways ask the same services,
# and a busy moment of one must not take all gateways out of rotation together.
REACHED_WITHIN_S = 10.0


class Readiness:
    """Probes the services that every request needs. `draining`: this gateway leaves."""

    def __init__(
        self,
        quota: QuotaClient,
        tokenizer: TokenizerClient,
        directory: ModelDirectory,
        routers: Routers,
        clock: Clock,
    ) -> None:
        self.draining = False
        self._probes = {"quota": quota.probe, "tokenizer": tokenizer.probe}
        self._directory = directory
        self._routers = routers
        self._clock = clock
        self._reached_s: dict[str, float] = {}

    async def reasons(self) -> list[str]:
        """The reasons why this gateway cannot serve; empty when it is ready."""
        reasons = ["draining"] if self.draining else []
        answers = await asyncio.gather(*map(_answers, self._probes.values()))
        for name, has_answered in zip(self._probes, answers, strict=True):
            if has_answered:
                self._reached_s[name] = self._clock.now()
            elif self._clock.now() - self._reached_s.get(name, -math.inf) > REACHED_WITHIN_S:
                reasons.append(f"{name} service unreachable")
        # A gateway that has heard of workers once can serve without a router
        # (routing/fallback_picker.py).
        if not self._directory.num_ready_models:
            heard = self._routers.is_any_heard
            reasons.append("no model has a ready worker" if heard else "router unreachable")
        return reasons


async def _answers(probe: Callable[[float], Awaitable[None]]) -> bool:
    try:
        await probe(_PROBE_TIMEOUT_S)
    except BatonError:
        return False
    return True
