"""A tenant reads so much of what is stored, and no more."""

import asyncio
import json

from services.gateway.stored.reads import BURST_BYTES, BYTES_PER_S, REQUEST_BYTES
from tests.unit.gateway.stored.clients import Caller, with_store


def test_a_tenant_that_reads_without_end_is_refused_until_it_has_waited() -> None:
    async def scenario(caller: Caller) -> None:
        items = json.dumps([{"id": "msg_1", "type": "message", "content": "x" * 1_900_000}])
        stored = {"status": "completed", "response": b"{}", "input": items.encode()}
        assert caller.fleet.gateway.store is not None
        await caller.fleet.gateway.store.write("acme", "resp_req_1", stored)
        path = "/v1/responses/resp_req_1/input_items"
        most = BURST_BYTES // len(items) + 2
        statuses = [(await caller.get(path)).status for _ in range(most)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        refused = await caller.get("/v1/responses/resp_req_1")
        assert refused.error == "429 share_exceeded None"
        await asyncio.sleep(int(refused.headers["retry-after"]))
        assert (await caller.get(path)).status == 200

    with_store(scenario)


def test_a_client_may_ask_for_a_small_response_many_times_a_second() -> None:
    async def scenario(caller: Caller) -> None:
        response_id = (await caller.create()).json["id"]
        for _ in range(200):
            assert (await caller.get(f"/v1/responses/{response_id}")).status == 200
        assert BURST_BYTES + BYTES_PER_S > 200 * REQUEST_BYTES

    with_store(scenario)
