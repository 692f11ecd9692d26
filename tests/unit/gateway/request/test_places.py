"""One tenant cannot have all places of a gateway."""

import asyncio

import pytest

from baton.wire.failures import LimitExceeded
from services.gateway.request.limits import Limits
from services.gateway.tenants.auth import FRESH_S
from tests.unit.gateway.fakes import Fleet, simulate


def test_one_tenant_cannot_have_all_places_of_a_gateway() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 60
        open_ones = [fleet.tasks.create_task(fleet.chat()) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(LimitExceeded) as caught:
            await fleet.chat()
        assert caught.value.reason == "share_exceeded"
        assert caught.value.retry_after_s > 0
        fleet.quota.principal.tenant = "other"
        await asyncio.sleep(FRESH_S)
        open_ones.append(fleet.tasks.create_task(fleet.chat()))
        await asyncio.sleep(1)
        assert len(fleet.router.picked) == 3
        await asyncio.gather(*open_ones)

    simulate(scenario, limits=Limits(max_open_requests=3, share_of_requests=1))
