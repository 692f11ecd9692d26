"""What goes wrong between the workers: bad data, lost streams, silence, foreign peers."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.protocol.client import CoreDied
from baton.handoff.ticket import LEASE_S
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.virtual_clock import virtual
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import handoff_pb2, worker_pb2
from tests.simulation.workers.fleet import (
    PREFILL_ENDPOINT,
    Answer,
    FakeGateway,
    Fleet,
    Tamper,
    fleet,
    pass_on,
)

pytestmark = pytest.mark.usefixtures("by_each_transport")

PROMPT = list(range(100, 150))


def drop(*kinds: str) -> Tamper:
    return lambda frame: [] if frame.WhichOneof("frame") in kinds else [frame]


def flip_a_bit(*, times: int) -> Tamper:
    """Corrupt the first `times` Blocks frames."""
    left = [times]

    def tamper(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
        if frame.HasField("blocks") and left[0]:
            left[0] -= 1
            if frame.blocks.HasField("pool_ref"):
                frame.blocks.checksum ^= 1  # the page lies in memory that both map
            else:
                data = bytearray(frame.blocks.data)
                data[len(data) // 2] ^= 1
                frame.blocks.data = bytes(data)
        return [frame]

    return tamper


def only_of(f: Fleet, request_id: str, tamper: Tamper) -> Tamper:
    """Leave Blocks frames of other requests as they are."""

    def tamper_its_own(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
        own = {
            prefill.xfer_id for prefill in f.kinds("prefill") if prefill.request_id == request_id
        }
        return tamper(frame) if frame.blocks.xfer_id in own else [frame]

    return tamper_its_own


def failure_of(answer: Answer) -> str:
    """The reason why the answer ended early, however it was told."""
    if answer.refused:
        return answer.refused[0].failure.reason
    return answer.finishes[0].failure.reason


@virtual
async def test_a_corrupted_block_is_asked_for_again_and_never_served() -> None:
    async with fleet() as f:
        f.to_decode = flip_a_bit(times=1)

        answer = await (await f.gateway.submit(PROMPT, temperature=0.9, seed=5)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT, temperature=0.9, seed=5)
        assert len(f.kinds("prefill")) == 2
        assert f.kinds("prefill")[0].capability != f.kinds("prefill")[1].capability
        await f.settle(1)


@virtual
async def test_what_a_first_try_computed_does_not_count_as_cached_in_the_second() -> None:
    async with fleet() as f:
        f.to_decode = flip_a_bit(times=1)

        answer = await (await f.gateway.submit(list(range(200)))).over()

        assert [first.xfer_id for first in f.kinds("first_tokens")] == [2]
        assert answer.prefills[0].num_cached_tokens == 0


@virtual
async def test_blocks_that_stay_bad_end_the_attempt_and_free_both_sides() -> None:
    async with fleet() as f:
        f.to_decode = flip_a_bit(times=1000)

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert failure_of(answer) == "handoff_failed"
        assert len(f.kinds("prefill")) == 2
        await f.settle(1)


@virtual
async def test_absurd_sizes_of_blocks_that_nobody_asked_for_end_no_link() -> None:
    async with fleet() as f:
        sent = []

        def boast(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
            if sent or not frame.HasField("accepted"):
                return [frame]
            for num_bytes in (1, 2**64 - 1):
                foreign = handoff_pb2.PrefillFrame(blocks={"xfer_id": 99})
                foreign.blocks.pool_ref.num_bytes = num_bytes
                sent.append(foreign)
            return [*sent, frame]

        f.to_decode = boast

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert len(sent) == 2
        assert len(f.handoff_streams) == 1
        await f.settle(1)


def shift_layers(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
    if frame.HasField("blocks"):
        frame.blocks.layer = 1 - frame.blocks.layer
    return [frame]


def truncate(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
    if frame.HasField("blocks") and frame.blocks.HasField("pool_ref"):
        frame.blocks.pool_ref.block_ids.pop()
    elif frame.HasField("blocks"):
        frame.blocks.data = frame.blocks.data[:-8]
    return [frame]


@pytest.mark.parametrize("tamper", [shift_layers, truncate])
@virtual
async def test_shifted_layers_and_truncated_pages_are_refused(tamper: Tamper) -> None:
    async with fleet() as f:
        f.to_decode = tamper

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert failure_of(answer) == "handoff_failed"
        await f.settle(1)


@virtual
async def test_doubled_frames_change_nothing() -> None:
    async with fleet() as f:
        f.to_decode = lambda frame: [frame] if frame.HasField("hello") else [frame, frame]
        f.to_prefill = lambda frame: [frame] if frame.HasField("hello") else [frame, frame]

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        await f.settle(1)


def forge(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
    """Before each real Blocks frame, garbage for the same blocks without the right ticket."""
    if not frame.HasField("blocks"):
        return [frame]
    forged = []
    for field, value in (("epoch", 9), ("capability", b"x" * 16), ("xfer_id", 4711)):
        copy = handoff_pb2.PrefillFrame()
        copy.CopyFrom(frame)
        copy.blocks.data = b"\xff" * len(frame.blocks.data)
        setattr(copy.blocks, field, value)
        forged.append(copy)
    return [*forged, frame]


@virtual
async def test_frames_of_an_old_epoch_or_a_foreign_capability_are_dropped() -> None:
    async with fleet() as f:
        f.to_decode = forge

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert len(f.kinds("prefill")) == 1
        await f.settle(1)


@virtual
async def test_an_abort_or_done_with_a_foreign_capability_frees_nothing() -> None:
    async with fleet() as f:

        def forge_ends(frame: handoff_pb2.DecodeFrame) -> list[handoff_pb2.DecodeFrame]:
            if not frame.HasField("prefill"):
                return [frame]
            ending: dict[str, Any] = {"xfer_id": frame.prefill.xfer_id, "capability": b"x" * 16}
            done = handoff_pb2.DecodeFrame(done=ending)
            return [frame, handoff_pb2.DecodeFrame(abort=ending), done]

        f.to_prefill = forge_ends

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        await f.settle(1)


@virtual
async def test_a_peer_with_another_model_is_refused_naming_the_difference() -> None:
    async with fleet(prefill_sizes={"model_fp": "other-model"}) as f:
        answer = await (await f.gateway.submit(PROMPT)).over()

        failure = answer.refused[0].failure
        assert failure.reason == "incompatible"
        assert "model_fp fake-model of decode-1 != other-model here" in failure.message
        await f.settle(1)


@virtual
async def test_a_peer_with_another_kv_spec_is_refused_naming_the_difference() -> None:
    async with fleet(prefill_runner_options={"num_layers": 3}) as f:
        answer = await (await f.gateway.submit(PROMPT)).over()

        failure = answer.refused[0].failure
        assert failure.reason == "incompatible"
        assert "row_bytes" in failure.message
        await f.settle(1)


@virtual
async def test_a_peer_of_a_protocol_too_old_is_refused_naming_both() -> None:
    async with fleet() as f:

        def from_the_past(frame: handoff_pb2.DecodeFrame) -> list[handoff_pb2.DecodeFrame]:
            if frame.HasField("hello"):
                frame.hello.protocol = 0
            return [frame]

        f.to_prefill = from_the_past

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.refused[0].failure.reason == "incompatible"
        assert "protocol 0 of decode-1" in answer.refused[0].failure.message
        assert "prefill-1 speaks" in answer.refused[0].failure.message
        await f.settle(1)


@virtual
async def test_an_unreachable_prefill_worker_fails_the_request_only() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, prefill_endpoint="nowhere:1")).over()

        assert failure_of(answer) == "handoff_failed"
        await f.settle(1)
        assert (await (await f.gateway.submit(PROMPT)).over()).tokens[0] == f.lone_run(PROMPT)


@pytest.mark.parametrize("kept_back", ["hello", "blocks"])
@virtual
async def test_what_clients_may_read_of_a_failed_handoff_names_no_address(kept_back: str) -> None:
    async with fleet() as f:
        f.to_decode = drop(kept_back)
        answer = await (await f.gateway.submit(PROMPT)).over()
        (failure,) = [
            *(refused.failure for refused in answer.refused),
            *(finish.failure for finish in answer.finishes.values()),
        ]
        assert failure.reason == "handoff_failed"
        assert PREFILL_ENDPOINT not in failure.message
        await f.settle(1)


@virtual
async def test_a_lost_handoff_stream_frees_both_sides_and_is_dialled_again() -> None:
    async with fleet() as f:
        f.to_decode = drop("commit")
        answer = await f.gateway.submit(PROMPT)
        await answer.first_token()

        f.handoff_streams[0].cancel()

        assert failure_of(await answer.over()) == "handoff_failed"
        await f.settle(1)
        f.to_decode = pass_on
        assert (await (await f.gateway.submit(PROMPT)).over()).tokens[0] == f.lone_run(PROMPT)


@virtual
async def test_blocks_that_never_arrive_end_the_attempt_within_a_lease() -> None:
    async with fleet() as f:
        f.to_decode = drop("blocks")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert failure_of(answer) == "handoff_failed"
        assert 0 < asyncio.get_running_loop().time() <= LEASE_S + 2
        await f.settle(1)


@virtual
async def test_a_handoff_stream_that_delivers_nothing_is_dialled_again() -> None:
    def without_credit(frame: Any) -> list[Any]:
        frame.hello.credit_bytes = 0
        return [frame]

    async with fleet() as f:
        f.to_prefill = lambda frame: without_credit(frame) if frame.HasField("hello") else [frame]
        answer = await (await f.gateway.submit(PROMPT)).over()
        assert failure_of(answer) == "handoff_failed"

        f.to_prefill = pass_on
        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert len(f.handoff_streams) == 2
        await f.settle(1)


@virtual
async def test_one_transfer_that_hangs_does_not_end_the_stream_of_the_others() -> None:
    async with fleet() as f:
        f.to_decode = lambda frame: (
            [] if frame.HasField("blocks") and frame.blocks.xfer_id == 1 else [frame]
        )
        hanging = await f.gateway.submit(PROMPT)
        for i in range(12):
            await asyncio.sleep(0.5)
            prompt = [i, *PROMPT]
            assert (await (await f.gateway.submit(prompt)).over()).tokens[0] == f.lone_run(prompt)

        assert failure_of(await hanging.over()) == "handoff_failed"
        assert len(f.handoff_streams) == 1
        await f.settle(1)


@virtual
async def test_transfers_that_wait_in_line_on_a_slow_stream_do_not_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.decode_worker.prefill_link.CREDIT_WINDOW_BYTES", 2048)
    async with fleet(decode_sizes={"num_blocks": 256}, prefill_sizes={"num_blocks": 256}) as f:
        f.delay_s = lambda frame: 0.5 if frame.HasField("blocks") else 0.0
        prompts = [[i, *PROMPT] for i in range(10)]
        answers = [await f.gateway.submit(prompt) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            assert (await answer.over()).tokens[0] == f.lone_run(prompt)

        assert asyncio.get_running_loop().time() > 2 * LEASE_S
        await f.settle(1)


@pytest.mark.parametrize("whose", ["leader", "fork"])
@virtual
async def test_a_first_token_that_is_none_never_reaches_the_core(whose: str) -> None:
    async with fleet() as f:

        def no_token(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
            if frame.HasField("first_tokens"):
                first = frame.first_tokens
                (first if whose == "leader" else first.forks[0]).token_id = 70_000
            return [frame]

        f.to_decode = no_token

        answer = await (await f.gateway.submit(PROMPT, num_choices=2)).over()

        assert failure_of(answer) == "handoff_failed"
        assert not answer.tokens
        await f.settle(1)


@virtual
async def test_a_prefill_worker_frees_by_itself_what_nobody_renews() -> None:
    async with fleet() as f:
        f.to_decode = drop("first_tokens", "blocks", "commit", "abort")
        f.to_prefill = drop("renew", "done", "abort")
        answer = await f.gateway.submit(PROMPT)
        await asyncio.sleep(LEASE_S - 0.5)
        assert f.prefill.num_used_blocks > 0

        await asyncio.sleep(1.2)

        assert f.prefill.num_used_blocks == 0
        f.prefill.check()
        await f.gateway.cancel("request-1")
        assert (await answer.over()).finishes[0].reason == "cancelled"
        await f.settle(1)


@virtual
async def test_a_renewed_lease_outlives_its_first_term() -> None:
    async with fleet() as f:
        f.to_decode = drop("first_tokens", "blocks", "commit")
        answer = await f.gateway.submit(PROMPT)
        await asyncio.sleep(4 * LEASE_S)
        assert f.prefill.num_used_blocks > 0

        await f.gateway.cancel("request-1")

        await answer.over()
        await f.settle(1)


@virtual
async def test_the_deadline_ends_an_attempt_in_any_phase() -> None:
    async with fleet() as f:
        f.to_decode = drop("first_tokens", "blocks", "commit")

        answer = await (await f.gateway.submit(PROMPT, deadline_ms=1500)).over()

        assert failure_of(answer) == "deadline_exceeded"
        assert asyncio.get_running_loop().time() == pytest.approx(1.5, abs=0.1)
        await f.settle(1)


@virtual
async def test_the_prefill_worker_gets_the_time_that_is_left() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(PROMPT, deadline_ms=60_000)).over()

        assert 59_000 < f.kinds("prefill")[0].deadline_ms <= 60_000


@virtual
async def test_no_room_at_the_decode_worker_is_told_at_once_with_its_reason() -> None:
    async with fleet(decode_sizes={"num_blocks": 8}) as f:
        first = await f.gateway.submit(list(range(90)))
        second = await f.gateway.submit(list(range(300, 390)))

        assert failure_of(await second.over()) == "no_room"
        assert (await first.over()).tokens[0] == f.lone_run(list(range(90)))
        await f.settle(1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_fp": "other"}, "incompatible"),
        ({"min_p": 1.5}, "invalid_value"),
        ({"num_logprobs": 21}, "invalid_value"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"cache_key": b"k" * 65}, "invalid_value"),
        ({"num_prompt_tokens": 5000}, "context_length_exceeded"),
        ({"num_prompt_tokens": 3}, "invalid_value"),
    ],
)
@virtual
async def test_a_submit_that_cannot_be_served_is_refused(
    fields: dict[str, Any], reason: str
) -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, **fields)).over()

        assert failure_of(answer) == reason
        await f.settle(1)


@virtual
async def test_an_unknown_token_id_is_refused_by_the_core() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit([1, 2, 70_000])).over()

        assert failure_of(answer) == "invalid_token_id"
        await f.settle(1)


@virtual
async def test_a_gateway_of_a_protocol_too_old_gets_a_bye_naming_both() -> None:
    async with fleet() as f:
        gateway = FakeGateway(f.dial_decode(), "gateway-9")

        hello = await gateway.hello(protocol=0)
        await gateway.run()

        assert hello.protocol == PROTOCOL_VERSION
        reason = gateway.others[0].bye.reason
        assert "protocol 0 of gateway-9" in reason
        assert "decode-1 speaks" in reason


@virtual
async def test_everything_of_a_gateway_that_leaves_is_freed() -> None:
    async with fleet() as f:
        gateway = await f.connect()
        answer = await gateway.submit(PROMPT, max_tokens=500)
        await answer.first_token()

        await gateway.stream.write(worker_pb2.GatewayFrame(bye={"reason": "scaled down"}))

        await f.settle(0.5)


@virtual
async def test_a_newer_epoch_of_a_request_ends_the_older_one() -> None:
    async with fleet() as f:
        old = await f.gateway.submit(PROMPT, request_id="r", epoch=1, max_tokens=500)
        await old.first_token()

        new = await f.gateway.submit(PROMPT, request_id="r", epoch=2)
        stale = await f.gateway.submit(PROMPT, request_id="r", epoch=1)

        assert (await old.over()).finishes[0].reason == "cancelled"
        assert failure_of(await stale.over()) == "invalid_value"
        assert (await new.over()).tokens[0] == f.lone_run(PROMPT)
        await f.settle(1)


@virtual
async def test_a_cancel_of_another_epoch_is_ignored() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, epoch=3)

        await f.gateway.cancel("request-1", epoch=2)

        assert (await answer.over()).tokens[0] == f.lone_run(PROMPT)


@virtual
async def test_a_draining_decode_worker_finishes_what_runs_and_takes_nothing_new() -> None:
    async with fleet() as f:
        running = await f.gateway.submit(PROMPT, max_tokens=50)
        await running.first_token()
        draining = asyncio.ensure_future(f.decode.front.drain(10))
        await asyncio.sleep(0.05)

        late = await (await f.gateway.submit(PROMPT)).over()

        assert failure_of(late) == "draining"
        assert (await running.over()).tokens[0] == f.lone_run(PROMPT, 50)
        await draining
        await f.gateway.has_ended.wait()
        assert [frame.WhichOneof("frame") for frame in f.gateway.others] == ["go_away", "bye"]
        await f.settle(1)


@virtual
async def test_a_drain_ends_at_its_cap() -> None:
    async with fleet() as f:
        stalled = await f.gateway.submit(PROMPT, initial_credit_tokens=1)
        await stalled.first_token()

        await f.decode.front.drain(3)

        assert (await stalled.over()).finishes[0].failure.reason == "draining"
        await f.settle(1)


@virtual
async def test_a_prefill_worker_that_takes_nothing_new_is_named_as_the_one_that_refused() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(PROMPT)).over()
        f.prefill.front._is_draining = True

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert failure_of(answer) == "prefill_refused"
        await f.settle(1)


@virtual
async def test_a_full_prefill_queue_is_a_refusal_for_now() -> None:
    async with fleet(decode_sizes={"num_blocks": 256}) as f:
        f.prefill.engine._commands._max_waiting = 1
        answers = [await f.gateway.submit([n, *PROMPT], max_tokens=2) for n in range(6)]

        reasons = {failure_of(await answer.over()) for answer in answers}

        assert reasons == {"", "prefill_refused"}
        await f.settle(1)


# Prompts of requests that run beside one that is cancelled.
EARLIER, LATER = list(range(500, 570)), list(range(700, 860))
PHASES = ["prefill", "accepted", "first_tokens", "blocks", "commit", "done"]


async def cancel_at(f: Fleet, phase: str, prompt: list[int]) -> Answer:
    """Submit, and cancel at the instant at which the first frame of a kind is on its way."""
    reached = asyncio.Event()

    def watch(frame: Any) -> list[Any]:
        if frame.WhichOneof("frame") == phase:
            reached.set()
        return [frame]

    f.to_decode = f.to_prefill = watch
    answer = await f.gateway.submit(prompt, max_tokens=100)
    await reached.wait()
    await f.gateway.cancel("request-1")
    return await answer.over()


@pytest.mark.parametrize("phase", PHASES)
@virtual
async def test_a_cancel_in_any_phase_frees_both_sides(phase: str) -> None:
    async with fleet() as f:
        answer = await cancel_at(f, phase, list(range(200)))

        assert answer.finishes[0].reason == "cancelled"
        await f.settle(0.5)


@pytest.mark.parametrize("phase", PHASES)
@virtual
async def test_a_stream_lost_in_any_phase_frees_both_sides(phase: str) -> None:
    async with fleet() as f:

        def cut(frame: Any) -> list[Any]:
            if frame.WhichOneof("frame") == phase:
                f.handoff_streams[-1].cancel()
                return []
            return [frame]

        f.to_decode = f.to_prefill = cut

        answer = await (await f.gateway.submit(list(range(200)))).over()

        if phase == "done":
            assert answer.tokens[0] == f.lone_run(list(range(200)))
        else:
            assert failure_of(answer) == "handoff_failed"
        await f.settle(1)


@given(
    cancel_after_s=st.integers(0, 60).map(lambda n: n / 200),
    num_tokens=st.integers(1, 180),
    num_choices=st.integers(1, 3),
    bad_frames=st.integers(0, 3),
    local_too=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_whenever_a_request_is_cancelled_nothing_is_left_and_others_are_unharmed(
    cancel_after_s: float, num_tokens: int, num_choices: int, bad_frames: int, local_too: bool
) -> None:
    @virtual
    async def scenario() -> None:
        sizes = {"num_blocks": 256}
        async with fleet(decode_sizes=sizes, prefill_sizes=sizes) as f:
            endpoint = {"prefill_endpoint": ""} if local_too else {}
            earlier = await f.gateway.submit(EARLIER, max_tokens=30, **endpoint)
            f.to_decode = only_of(f, "request-2", flip_a_bit(times=bad_frames))
            prompt = list(range(num_tokens))
            answer = await f.gateway.submit(prompt, max_tokens=20, num_choices=num_choices)
            later = await f.gateway.submit(LATER, max_tokens=30)
            await asyncio.sleep(cancel_after_s)
            await f.gateway.cancel("request-2")
            await answer.over()
            for choice, tokens in answer.tokens.items():
                alone = f.lone_run(prompt, 20, choice=choice)
                assert tokens == alone[: len(tokens)]
            for other, other_prompt in ((earlier, EARLIER), (later, LATER)):
                await other.over()
                assert not other.refused
                assert not other.finishes[0].HasField("failure")
                assert other.tokens[0] == f.lone_run(other_prompt, 30)
            await f.settle(1)

    scenario()


@virtual
async def test_a_dead_core_is_told_to_gateways_with_its_suspects() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with fleet() as f:
            answer = await f.gateway.submit(PROMPT, max_tokens=500)
            await answer.first_token()
            await asyncio.sleep(0.105)

            f.decode.client.kill()
            try:
                await asyncio.Event().wait()
            finally:
                frames = [frame for frame in f.gateway.others if frame.HasField("core_died")]
                assert list(frames[0].core_died.suspect_request_ids) == ["request-1"]
                assert failure_of(answer) == "worker_lost"
    assert raised.value.subgroup(CoreDied) is not None


@virtual
async def test_a_core_that_dies_during_a_handoff_is_the_reason_that_the_gateway_gets() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with fleet() as f:
            f.to_decode = drop("blocks")
            answer = await f.gateway.submit(PROMPT)
            await answer.first_token()

            f.decode.client.kill()
            try:
                await asyncio.Event().wait()
            finally:
                assert failure_of(answer) == "worker_lost"
    assert raised.value.subgroup(AssertionError) is None


@virtual
async def test_peers_that_do_not_answer_a_bye_hold_up_the_end_together_not_in_turn() -> None:
    async with fleet() as f:
        for number in range(5):
            await FakeGateway(f.dial_decode(), f"silent-{number}").hello()
            ours, theirs = memory_stream_pair()
            f.tasks.create_task(f.prefill.front.serve(theirs))
            await ours.write(handoff_pb2.DecodeFrame(hello=f.hello(f"decode-{number}")))
            assert not (await ours.read()).hello.HasField("failure")
        started_s = asyncio.get_running_loop().time()

        await f.decode.front.drain(1.0)
        await f.prefill.front.drain(1.0)

        assert asyncio.get_running_loop().time() - started_s < 2.5
