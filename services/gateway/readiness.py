"""The readiness of this gateway: the reasons for which balancers must not send it requests.

Decided from what is known already, so that asking costs nothing. Quota is a soft dependency: all
gateways lose it together, and a gateway that knows keys serves on without it. It says so, and
stays ready. A gateway that has just started knows none, and is ready once quota's store has
answered.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import BatonError
from baton.wire.v1 import router_pb2
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
_HYSTERESIS = 0.5


@dataclass(frozen=True, slots=True)
class ReadinessState:
    """The reasons not to send requests, and those for which it serves with limits of its own.

    `is_full`: requests had better go to another region, if that has room.
    """

    unready: list[str]
    degraded: list[str]
    is_full: bool = False


class FleetRoom:
    """Whether the fleet has room for a new request, as its routers predict it.

    Full when some model's new requests would wait for `full_wait_s` (0 = never), and until they
    would wait for half of it: what changes with each request would send all of them to and fro.
    """

    def __init__(self, full_wait_s: float) -> None:
        self._full_wait_s = full_wait_s
        self.is_full = False

    def update(self, models: Iterable[router_pb2.ModelState]) -> None:
        """Take in the routers' view."""
        if not self._full_wait_s:
            return
        longest_s = max((max(model.predicted_wait_s, default=0.0) for model in models), default=0.0)
        least_s = self._full_wait_s * (_HYSTERESIS if self.is_full else 1.0)
        self.is_full = longest_s >= least_s


class Readiness:
    """Follows the services that every request needs, in `run`. `draining`: this gateway leaves."""

    def __init__(
        self,
        quota: GuardedQuota,
        tokenizer: TokenizerClient,
        directory: ModelDirectory,
        routers: Routers,
        authenticator: Authenticator,
        room: FleetRoom,
        clock: Clock,
    ) -> None:
        self.draining = False
        self._quota = quota
        self._authenticator = authenticator
        self._room = room
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
        if self._room.is_full:
            degraded.append("a new request would wait")
        return ReadinessState(unready, degraded, self._room.is_full)

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
