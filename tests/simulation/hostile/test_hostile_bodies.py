"""No body makes the gateway fail: each is answered, or refused with a short error of its API.
/openapi.json allows each that is answered, and describes its answer.

With BATON_TEST_LONG there are 200,000 bodies.
"""

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.openapi.answers import Error, MessageError
from tests.simulation.hostile.long_counts import examples, in_parts, parts
from tests.unit.gateway.hostile.bodies import bodies
from tests.unit.gateway.hostile.described import faults, is_described, operation_of
from tests.unit.gateway.stored.clients import Answered, Caller, with_store

BATCH = 20
NUM_PARTS, NUM_EXAMPLES = 50, 200
MAX_MESSAGE_CHARS = 500
MAX_PARAM_CHARS = 200


def check(path: str, body: bytes, answer: Answered) -> None:
    assert answer.status in (200, 400, 404, 413), answer.body
    if answer.status == 200:
        assert not faults(path, body), body
        if answer.headers["content-type"] == "application/json":
            assert is_described(answer.body, operation_of("post", path).answer), answer.body
        return
    form = MessageError if path.startswith("/v1/messages") else Error
    assert is_described(answer.body, form), answer.body
    error = json.loads(answer.body)["error"]
    assert len(error["message"]) <= MAX_MESSAGE_CHARS
    assert len(error.get("param") or "") <= MAX_PARAM_CHARS


@in_parts
@pytest.mark.parametrize("part", parts(NUM_PARTS))
def test_every_body_is_answered_or_refused(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    num_sent = 0

    @examples(NUM_EXAMPLES, 4)
    @given(st.lists(bodies(), min_size=BATCH, max_size=BATCH))
    def send(batch: list[tuple[str, bytes]]) -> None:
        async def scenario(caller: Caller) -> None:
            caller.fleet.worker.texts = ["Hi", "ab"]
            for path, body in batch:
                check(path, body, await caller.send("POST", path, body))
            await asyncio.sleep(5)
            assert (await caller.create("still there?")).status == 200

        nonlocal num_sent
        with_store(scenario)
        num_sent += len(batch)

    send()
    record_property("hostile bodies", num_sent)
