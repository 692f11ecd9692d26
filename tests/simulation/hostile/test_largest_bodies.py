"""No body that is parsed in the event loop holds it for long: CPU time of the longest callback."""

import asyncio
import json
import time
from asyncio import events
from typing import Any

import pytest

from services.gateway.endpoints import ENDPOINTS
from services.gateway.http.conversations import MAX_BODY_BYTES
from services.gateway.request.room import LARGE_BODY_BYTES
from tests.unit.gateway.hostile.bodies import EXAMPLES
from tests.unit.gateway.hostile.described import described
from tests.unit.gateway.stored.clients import Caller, with_store

MAX_SLICE_S = 0.02
# One of so many rounds does it: caches and the collection of garbage are not what is measured.
NUM_ROUNDS = 3
LISTS = ("messages", "input", "documents", "text_2", "prompt", "tokens", "items")
PATHS = [path for path, methods in described()["paths"].items() if "post" in methods]
# These take no JSON of their own, or none of that size.
WITHOUT_BODY = ("/v1/responses/{id}/cancel", "/v1/batches/{id}/cancel", "/v1/files")


def filled(path: str, entry: Any) -> bytes:
    """A body for `path`, as large as is parsed in the loop: its list has many copies of `entry`."""
    size = LARGE_BODY_BYTES if path in ENDPOINTS else MAX_BODY_BYTES
    needed, optional = EXAMPLES.get(path, ({}, {"items": []}))
    name = next((each for each in {**needed, **optional} if each in LISTS), "metadata")
    num_left = size - len(json.dumps({**needed, name: []}))
    return json.dumps({**needed, name: [entry] * (num_left // len(json.dumps([entry])))}).encode()


def slice_of(path: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> float:
    """The CPU time of the longest callback while this body is answered."""
    longest = 0.0
    run = events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest
        began_s = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - began_s)

    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.texts = ["Hi"] * 300
        monkeypatch.setattr(events.Handle, "_run", timed)
        answer = await caller.send("POST", path.replace("{id}", "conv_1"), body)
        monkeypatch.setattr(events.Handle, "_run", run)
        assert answer.status < 500, answer.body

    with_store(scenario)
    return longest


@pytest.mark.parametrize("entry", ["a", 7, {"role": "user", "content": "a"}], ids=str)
@pytest.mark.parametrize("path", [path for path in PATHS if path not in WITHOUT_BODY])
def test_a_body_holds_the_loop_for_20_ms_at_most(
    path: str, entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = filled(path, entry)
    rounds = (slice_of(path, body, monkeypatch) for _ in range(NUM_ROUNDS))
    assert any(taken_s <= MAX_SLICE_S for taken_s in rounds)
