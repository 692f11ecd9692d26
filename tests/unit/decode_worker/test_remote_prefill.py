"""The coroutine of one handoff: its tries, the order of what it hears, and its ends."""

import asyncio
from typing import Any

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire import failures
from baton.wire.v1 import handoff_pb2
from services.decode_worker.remote_prefill import Prefilled
from tests.unit.decode_worker.fake_prefill_worker import (
    BOUND,
    FILL,
    Handoff,
    Scenario,
    failure,
    handoff,
)
from tests.unit.worker.scripted_core import turns


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with handoff() as h:
            await scenario(h)

    run_virtual(run())


def flip_a_bit(frame: Any) -> None:
    frame.blocks.data = bytes([frame.blocks.data[0] ^ 1]) + frame.blocks.data[1:]


def reason_of(h: Handoff) -> str:
    assert isinstance(h.result, failures.BatonError)
    return h.result.reason


def is_filled(h: Handoff) -> list[bool]:
    return [set(h.pool_block(block_id)) == {FILL} for block_id in BOUND]


def test_a_handoff_ends_with_filled_blocks_and_done() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await h.peer.tell_first(request)
        await turns()
        h.bound.set_result(BOUND)
        await h.peer.send_blocks(request)
        await h.over.wait()
        assert isinstance(h.result, Prefilled)
        assert h.result.first_tokens.token_id == 7
        assert is_filled(h) == [True] * 3
        await turns()
        assert h.peer.kinds() == ["prefill", "done"]

    play(scenario)


def test_a_peer_that_sends_more_than_its_credit_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frames that come before the blocks are bound wait in memory, repeated ones as well."""
    monkeypatch.setattr("services.decode_worker.prefill_link.CREDIT_WINDOW_BYTES", 1)

    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await h.peer.send_blocks(request)
        await turns()
        assert h.result is None
        await h.peer.send_blocks(request)
        await h.over.wait()
        assert reason_of(h) == "handoff_failed"
        assert h.links.num_transfers == 0

    play(scenario)


def test_the_first_tokens_are_told_before_the_blocks_are_bound() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await h.peer.tell_first(request)
        await turns()
        assert [(first.token_id, num_blocks) for first, num_blocks in h.told] == [(7, 3)]
        h.bound.set_result(BOUND)
        await h.peer.send_blocks(request)
        await h.over.wait()

    play(scenario)


def test_blocks_are_bound_and_filled_while_the_first_tokens_are_not_known() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await turns()
        assert h.num_binds == 1
        h.bound.set_result(BOUND)
        await h.peer.send_blocks(request)
        await turns()
        assert is_filled(h) == [True] * 3
        assert h.result is None
        await h.peer.tell_first(request)
        await h.over.wait()

    play(scenario)


def test_bad_blocks_are_asked_for_once_more_into_the_same_blocks() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        first = await h.peer.next("prefill")
        await h.peer.accept(first)
        await h.peer.tell_first(first)
        await turns()
        h.bound.set_result(BOUND)
        await h.peer.send_blocks(first, flip_a_bit)
        second = await h.peer.next("prefill", 2)
        assert second.capability != first.capability
        await h.peer.accept(second)
        await h.peer.tell_first(second, token_id=8)
        await h.peer.send_blocks(second)
        await h.over.wait()
        assert isinstance(h.result, Prefilled)
        assert h.result.first_tokens.token_id == 7, "the gateway has it already"
        assert len(h.told) == h.num_binds == 1
        assert is_filled(h) == [True] * 3
        await turns()
        assert h.peer.kinds() == ["prefill", "abort", "prefill", "done"]

    play(scenario)


def test_blocks_that_stay_bad_fail_the_handoff() -> None:
    async def scenario(h: Handoff) -> None:
        h.bound.set_result(BOUND)
        h.start()
        for number in (1, 2):
            request = await h.peer.next("prefill", number)
            await h.peer.accept(request)
            await h.peer.tell_first(request)
            await h.peer.send_blocks(request, flip_a_bit)
        await h.over.wait()
        assert reason_of(h) == "handoff_failed"
        await turns()
        assert h.peer.kinds() == ["prefill", "abort", "prefill", "abort"]

    play(scenario)


def test_what_only_the_second_try_told_counts_as_not_cached() -> None:
    async def scenario(h: Handoff) -> None:
        h.bound.set_result(BOUND)
        h.start()
        first = await h.peer.next("prefill")
        await h.peer.accept(first)
        await h.peer.send_blocks(first, flip_a_bit)
        second = await h.peer.next("prefill", 2)
        await h.peer.accept(second)
        await h.peer.tell_first(second, num_cached_tokens=8)
        await h.peer.send_blocks(second)
        await h.over.wait()
        assert [told.num_cached_tokens for told, _ in h.told] == [0]

    play(scenario)


def test_a_first_token_that_was_the_last_ends_the_handoff_without_blocks() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await h.peer.tell_first(request, finish_reason="stop")
        await h.over.wait()
        assert isinstance(h.result, Prefilled)
        assert [num_blocks for _, num_blocks in h.told] == [0]
        assert not h.bound.done()
        await turns()
        assert h.peer.kinds() == ["prefill", "done"]

    play(scenario)


def test_a_refusal_is_final_and_names_the_peer() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.say(refused={"xfer_id": request.xfer_id, "failure": failure("overloaded")})
        await h.over.wait()
        assert reason_of(h) == "prefill_refused"
        assert h.num_binds == 0
        await turns()
        assert h.peer.kinds() == ["prefill", "abort"]

    play(scenario)


def test_an_abort_of_the_peer_needs_the_capability() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        abort = {"xfer_id": request.xfer_id, "failure": failure("deadline_exceeded")}
        await h.peer.say(abort={**abort, "capability": b"x" * 16})
        await turns()
        assert h.result is None
        await h.peer.say(abort={**abort, "capability": request.capability})
        await h.over.wait()
        assert reason_of(h) == "deadline_exceeded"

    play(scenario)


@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_peer_that_is_gone_fails_the_handoff_and_is_not_asked_twice(is_reachable: bool) -> None:
    async def scenario(h: Handoff) -> None:
        h.peer.is_reachable = is_reachable
        h.start()
        if is_reachable:
            await h.peer.next("prefill")
            h.peer.cut()
        await h.over.wait()
        assert reason_of(h) == "handoff_failed"
        assert h.peer.num_dials == is_reachable

    play(scenario)


def test_first_tokens_that_came_before_a_loss_are_still_told() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await h.peer.tell_first(request)
        await h.peer.say(
            abort={
                "xfer_id": request.xfer_id,
                "capability": request.capability,
                "failure": failure("unavailable"),
            }
        )
        await h.over.wait()
        assert len(h.told) == 1
        assert reason_of(h) == "unavailable"

    play(scenario)


STAGES = ["asked", "accepted", "computed", "bound"]


async def come_to(h: Handoff, stage: str) -> Any:
    h.start()
    request = await h.peer.next("prefill")
    if stage != "asked":
        await h.peer.accept(request)
    if stage in ("computed", "bound"):
        await h.peer.tell_first(request)
    if stage == "bound":
        h.bound.set_result(BOUND)
    await turns()
    return request


@pytest.mark.parametrize("stage", STAGES)
def test_a_cancel_takes_effect_in_the_call_that_brings_it(stage: str) -> None:
    async def scenario(h: Handoff) -> None:
        request = await come_to(h, stage)
        h.prefill.cancel(failures.Cancelled("the client left"))
        assert h.links.num_transfers == 0
        # What was on its way does not reach a block that may be somebody else's by now.
        if not h.bound.done():
            h.bound.set_result(BOUND)
        await h.peer.tell_first(request)
        await h.peer.send_blocks(request)
        await h.over.wait()
        await turns()
        assert is_filled(h) == [False] * 3
        assert h.result is None
        assert len(h.told) == (stage in ("computed", "bound"))
        assert (await h.peer.next("abort")).failure.reason == "cancelled"

    play(scenario)


def test_first_tokens_that_came_with_the_cancel_are_not_told() -> None:
    async def scenario(h: Handoff) -> None:
        request = await come_to(h, "accepted")
        (transfer,) = (t for link in h.links._running for t in link._transfers.values())
        transfer.on_first_tokens(handoff_pb2.FirstTokens(xfer_id=request.xfer_id, token_id=7))
        h.prefill.cancel(failures.Cancelled("the client left"))
        await h.over.wait()
        assert not h.told

    play(scenario)


def test_a_cancel_before_the_first_step_leaves_nothing() -> None:
    async def scenario(h: Handoff) -> None:
        h.start()
        h.prefill.cancel(failures.Cancelled("the client left"))
        await turns()
        assert h.peer.num_dials == 0

    play(scenario)


def test_the_end_of_the_links_ends_a_handoff() -> None:
    async def run() -> None:
        async with handoff() as h:
            await come_to(h, "bound")
            assert h.links._group is not None
            for task in list(h.links._group._tasks):
                task.cancel()
            await h.over.wait()
            assert h.links.num_transfers == 0

    run_virtual(run())


def test_the_blocks_at_the_prefill_worker_are_billed_until_the_end_of_the_handoff() -> None:
    """Also when it is given up: what the prefill worker told itself is left out."""

    async def scenario(h: Handoff) -> None:
        h.start()
        request = await h.peer.next("prefill")
        await h.peer.accept(request)
        await turns()
        await asyncio.sleep(0.2)
        await h.peer.say(spent={"xfer_id": request.xfer_id, "engine": {"kv_byte_ms": 1000}})
        await turns()
        await asyncio.sleep(0.3)
        h.prefill.cancel(failures.Cancelled("given up"))
        num_bytes = len(BOUND) * h.peer.deps.blocks.spec.row_bytes
        assert h.prefill.spent.kv_byte_ms == pytest.approx(1000 + 300 * num_bytes, rel=0.02)

    play(scenario)
