"""No body makes the gateway fail: each is answered, or refused with a short error of its API.
/openapi.json allows each that is answered, and describes its answer.

With BATON_TEST_LONG there are 200,000 bodies.
"""

import asyncio
import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given

from services.gateway.openapi.answers import Error, MessageError
from tests.simulation.hostile.long_counts import IS_LONG, examples, in_parts, parts, sources
from tests.unit.gateway.hostile.bodies import body
from tests.unit.gateway.hostile.described import faults, is_described, operation_of
from tests.unit.gateway.stored.clients import Answered, Caller, with_store

BATCH = 200 if IS_LONG else 20
NUM_PARTS, NUM_EXAMPLES = 20, 50
MAX_MESSAGE_CHARS = 500
MAX_PARAM_CHARS = 200


def check(path: str, body: bytes, answer: Answered) -> None:
    assert answer.status in (200, 400, 404, 413), (path, body, answer.body)
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
    @given(sources())
    def send(random: Random) -> None:
        async def scenario(caller: Caller) -> None:
            caller.fleet.worker.texts = ["Hi", "ab"]
            for _ in range(BATCH):
                path, sent = body(random)
                check(path, sent, await caller.send("POST", path, sent))
            await asyncio.sleep(5)
            assert (await caller.create("still there?")).status == 200

        nonlocal num_sent
        with_store(scenario)
        num_sent += BATCH

    send()
    record_property("hostile bodies", num_sent)
