"""No body makes the gateway fail: each is answered, or refused with a short error of its API.

With BATON_TEST_LONG there are 200,000 bodies.
"""

import asyncio
import json
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.hostile.bodies import bodies
from tests.unit.gateway.stored.clients import Answered, Caller, with_store

BATCH = 20
NUM_EXAMPLES = 10_000 if os.environ.get("BATON_TEST_LONG") else 6
MAX_MESSAGE_CHARS = 500
MAX_PARAM_CHARS = 200


def check(path: str, answer: Answered) -> None:
    assert answer.status in (200, 400, 404, 413), answer.body
    if answer.status == 200:
        return
    error = json.loads(answer.body)["error"]
    fields = {"message", "type"} if "/messages" in path else {"message", "type", "param", "code"}
    assert set(error) == fields
    assert len(error["message"]) <= MAX_MESSAGE_CHARS
    assert len(error.get("param") or "") <= MAX_PARAM_CHARS


@settings(max_examples=NUM_EXAMPLES)
@given(st.lists(bodies(), min_size=BATCH, max_size=BATCH))
def test_every_body_is_answered_or_refused(batch: list[tuple[str, bytes]]) -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.texts = ["Hi", "ab"]
        for path, body in batch:
            check(path, await caller.post(path, body))
        await asyncio.sleep(5)
        assert (await caller.create("still there?")).status == 200

    with_store(scenario)
