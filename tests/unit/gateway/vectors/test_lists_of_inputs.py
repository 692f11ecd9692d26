"""Long lists of inputs: their vectors have room in memory, and are encoded as they are sent."""

import asyncio
import json
from array import array
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import InvalidRequest, LimitExceeded
from baton.wire.pooling import Pooling
from services.gateway.http.response import MAX_KEPT_BYTES, HttpResponse
from services.gateway.openai.collected import PART_BYTES
from services.gateway.openai.generation import (
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    PlainText,
    TokenDetails,
    Usage,
    VectorForm,
)
from services.gateway.request.limits import Limits
from services.gateway.request.room import WAIT_S, ByteLimits
from services.gateway.vectors.embeddings import EmbeddingsAnswer
from services.gateway.vectors.fitting_models import bytes_of_list
from tests.unit.gateway.fakes import Fleet, RecordingSink, artifact, simulate

# Of two inputs; two lists of them have room at once, and one of each tenant.
LIST_BYTES = 2 * (8192 + 2 * 4)
LIMITS = Limits(vectors=ByteLimits(2 * LIST_BYTES, LIST_BYTES))


def embedder(fleet: Fleet) -> None:
    fleet.tokenizer.data = artifact(pooling=Pooling("last", 2, normalizes=True))


async def ask(fleet: Fleet, inputs: list[str]) -> RecordingSink:
    sink, body = RecordingSink(), {"model": "demo", "input": inputs}
    await fleet.gateway.pipeline.run(fleet.incoming("/v1/embeddings", body), sink)
    return sink


def test_a_list_waits_for_the_room_of_the_one_before_it() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 2
        lists = [fleet.tasks.create_task(ask(fleet, ["a", "b"])) for _ in range(2)]
        await asyncio.sleep(1)
        assert len(fleet.worker.submits) == 2
        await asyncio.gather(*lists)
        assert len(fleet.worker.submits) == 4
        # A single input takes none.
        fleet.tasks.create_task(ask(fleet, ["a", "b"]))
        await asyncio.sleep(1)
        assert (await ask(fleet, ["c"])).usage is not None

    simulate(scenario, limits=LIMITS, prepare=embedder)


def test_a_list_that_finds_no_room_for_long_is_refused_and_holds_nothing() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = WAIT_S + 2
        first = fleet.tasks.create_task(ask(fleet, ["a", "b"]))
        await asyncio.sleep(0.5)
        with pytest.raises(LimitExceeded) as caught:
            await ask(fleet, ["a", "b"])
        assert caught.value.reason == "share_exceeded"
        assert len(fleet.quota.reserved) == 1
        await first
        assert (await ask(fleet, ["a", "b"])).usage is not None

    simulate(scenario, limits=LIMITS, prepare=embedder)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_list_that_fails_gives_its_room_back(*, is_cancelled: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        if is_cancelled:
            running = fleet.tasks.create_task(ask(fleet, ["a", "b"]))
            await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait({running})
        else:
            with pytest.raises(InvalidRequest):
                await ask(fleet, ["a", "b" * 5000])
        assert (await ask(fleet, ["a", "b"])).usage is not None

    simulate(scenario, limits=LIMITS, prepare=embedder)


def test_a_list_that_would_never_have_room_is_refused_with_the_number_that_has() -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest, match=r"got 3, .* expected at most 2") as caught:
            await ask(fleet, ["a", "b", "c"])
        assert caught.value.param == "input"
        assert not fleet.quota.reserved

    simulate(scenario, limits=LIMITS, prepare=embedder)


def test_the_longest_list_of_wide_vectors_has_room() -> None:
    prompts = (PlainText("a"),) * 2048
    request = GenerationRequest("embeddings", "m", prompts[0], prompts, vector=VectorForm())
    most_bytes = Limits().vectors.num_bytes_of_tenant
    assert bytes_of_list(request, Pooling("last", 4096), most_bytes) <= most_bytes


class Socket:
    """Takes everything at once, and notes how much of it in one turn of the event loop."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.most_in_turn = self._in_turn = 0

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        self._in_turn += len(message.get("body", b""))
        self.most_in_turn = max(self.most_in_turn, self._in_turn)
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._in_turn = 0

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])


def answer_of(num_inputs: int, width: int) -> EmbeddingsAnswer:
    request = GenerationRequest("embeddings", "m", PlainText("a"), vector=VectorForm())
    answer = EmbeddingsAnswer(Identity("r", 0, "m", "fp", num_inputs), request)
    vector = array("f", [0.1] * width).tobytes()
    for choice in range(num_inputs):
        details = TokenDetails(vector=vector)
        answer.collect([Delta(choice, "", FinishReason.STOP, details=details)])
    return answer


async def test_a_long_answer_is_made_as_it_is_sent_a_part_in_each_turn() -> None:
    socket = Socket()
    response = HttpResponse(socket.send, {}, VirtualClock())
    await response.whole(200, answer_of(64, 512).whole(Usage(64, 0, 0)), {})
    assert b"content-length" not in socket.headers
    assert len(json.loads(socket.body)["data"]) == 64
    assert socket.most_in_turn < 2 * PART_BYTES


@pytest.mark.parametrize(("num_inputs", "is_kept"), [(1, False), (2, False), (64, True)])
async def test_a_short_answer_or_one_that_is_kept_has_a_length(
    num_inputs: int, *, is_kept: bool
) -> None:
    socket, kept = Socket(), list[bytes]()
    response = HttpResponse(socket.send, {}, VirtualClock())
    response.on_whole = kept.append if is_kept else None
    await response.whole(200, answer_of(num_inputs, 512).whole(Usage(1, 0, 0)), {})
    assert int(socket.headers[b"content-length"]) == len(socket.body)
    assert kept == [socket.body] * is_kept


async def test_an_answer_that_is_too_large_to_be_kept_is_not_joined() -> None:
    socket, kept = Socket(), list[bytes]()
    response = HttpResponse(socket.send, {}, VirtualClock())
    response.on_whole = kept.append
    pieces = [b"x" * PART_BYTES] * (MAX_KEPT_BYTES // PART_BYTES + 1)
    await response.whole(200, pieces, {})
    await HttpResponse(socket.send, {}, VirtualClock()).whole(200, iter(pieces), {})
    assert not kept
