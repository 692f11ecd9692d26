"""One Submit from its first frame to its one end, with a prompt that is prefilled here."""

import asyncio
from typing import Any

import pytest

from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Admitted,
    Command,
    Credit,
    Finished,
    SequenceRefused,
    Started,
)
from baton.testing.engine_driver import encode_tokens
from baton.testing.virtual_clock import virtual
from baton.wire.v1 import worker_pb2
from tests.unit.decode_worker.conftest import PROMPT, Gateway, Worker, worker


async def step_of(gateway: Gateway) -> worker_pb2.Step:
    frame = await gateway.read()
    assert frame.WhichOneof("frame") == "step"
    return frame.step


async def finishes_of(gateway: Gateway, num_choices: int = 1) -> dict[int, worker_pb2.Finish]:
    """Read steps until so many choices have finished."""
    finishes: dict[int, worker_pb2.Finish] = {}
    while len(finishes) < num_choices:
        for side in (await step_of(gateway)).side:
            if side.HasField("finish"):
                assert side.choice not in finishes
                finishes[side.choice] = side.finish
    return finishes


def stages_of(message: Any) -> Any:
    """Seconds by stage."""
    return pytest.approx({stage.name: stage.duration_us / 1e6 for stage in message.stages})


async def submitted(w: Worker, gateway: Gateway, **fields: Any) -> AddSequence:
    """The first sequence that the core is asked for."""
    await gateway.submit(**fields)
    return await w.core.next(AddSequence)


async def sent_until_idle(w: Worker) -> list[Command]:
    """Commands that the core was sent in the next moment."""
    await asyncio.sleep(0.01)
    return w.core.read_commands()


def seq_ids(add: AddSequence) -> list[int]:
    """By choice."""
    return [add.seq_id, *(fork.seq_id for fork in add.forks)]


@virtual
async def test_stages_cut_the_time_from_submit_to_finish_without_gap_or_overlap() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        await asyncio.sleep(0.5)
        w.core.tell(started=[Started(add.seq_id, [], 4, 3)])
        await asyncio.sleep(0.25)
        w.core.tell_token(add.seq_id, 11)
        first = await step_of(gateway)
        summary = first.side[0].prefill
        assert stages_of(summary) == {"prefill.queue": 0.5, "prefill.compute": 0.25}
        assert (summary.num_cached_tokens, summary.num_blocks_received) == (4, 0)
        await asyncio.sleep(2.0)
        w.core.tell_token(add.seq_id, 12, 1, finished=[Finished(add.seq_id, "length", 2)])
        finish = (await finishes_of(gateway))[0]
        assert (finish.reason, finish.num_output_tokens) == ("length", 2)
        stages = {"prefill.queue": 0.5, "prefill.compute": 0.25, "decode": 2.0}
        assert stages_of(finish) == stages


@virtual
async def test_the_core_is_asked_for_what_was_submitted() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await asyncio.sleep(1.0)
        marks = {"is_suspect": True, "is_quiet": True}
        add = await submitted(
            w, gateway, priority=3, deadline_ms=2500, initial_credit_tokens=5, **marks
        )
        assert (add.request_id, add.kind, add.choice) == ("r1", "local", 0)
        assert (add.token_ids, add.num_emitted) == (encode_tokens(PROMPT), 0)
        assert (add.priority, add.credit, add.is_suspect, add.is_quiet) == (3, 5, True, True)
        assert add.deadline == pytest.approx(3.5)
        assert add.sampling.max_tokens == 8


@virtual
async def test_choices_of_a_fresh_request_share_one_prompt() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 3})
        assert [fork.choice for fork in add.forks] == [1, 2]
        assert not [each for each in await sent_until_idle(w) if isinstance(each, AddSequence)]


@virtual
async def test_choices_that_go_on_wait_until_the_first_has_brought_the_prompt() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        had = {"choice": 1, "token_ids": encode_tokens([7, 8])}
        first = await submitted(w, gateway, sampling={"num_choices": 3}, emitted=[had])
        assert (first.choice, first.forks, first.num_emitted) == (0, (), 0)
        assert await sent_until_idle(w) == []
        w.core.tell(started=[Started(first.seq_id, [], 0, 3)])
        w.core.tell_token(first.seq_id, 11)
        later = await sent_until_idle(w)
        assert all(isinstance(each, AddSequence) for each in later)
        assert [(each.choice, each.num_emitted) for each in later] == [(1, 2), (2, 0)]
        assert later[0].token_ids == encode_tokens([*PROMPT, 7, 8])


@virtual
async def test_choices_that_wait_begin_when_the_first_is_cancelled_before_its_prompt() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        had = {"choice": 1, "token_ids": encode_tokens([7])}
        first = await submitted(w, gateway, sampling={"num_choices": 2}, emitted=[had])
        await gateway.say(cancel_choices={"handle": 1, "choices": [0]})
        abort, later = await sent_until_idle(w)
        assert abort == Abort(first.seq_id)
        assert isinstance(later, AddSequence)
        assert later.choice == 1
        assert (await finishes_of(gateway))[0].reason == "cancelled"


@virtual
async def test_a_choice_that_waits_and_is_cancelled_lets_no_other_begin_before_the_prompt() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        had = {"choice": 1, "token_ids": encode_tokens([7])}
        first = await submitted(w, gateway, sampling={"num_choices": 3}, emitted=[had])
        await gateway.say(cancel_choices={"handle": 1, "choices": [1]})
        assert (await finishes_of(gateway))[1].num_output_tokens == 1
        assert [type(each) for each in await sent_until_idle(w)] == [Abort]
        w.core.tell(started=[Started(first.seq_id, [], 0, 3)])
        w.core.tell_token(first.seq_id, 11)
        (later,) = await sent_until_idle(w)
        assert isinstance(later, AddSequence)
        assert later.choice == 2


@virtual
async def test_stages_are_those_of_the_first_choice() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        had = {"choice": 1, "token_ids": encode_tokens([7])}
        first = await submitted(w, gateway, sampling={"num_choices": 2}, emitted=[had])
        await asyncio.sleep(0.5)
        w.core.tell(started=[Started(first.seq_id, [], 0, 3)])
        w.core.tell_token(first.seq_id, 11)
        second = await w.core.next(AddSequence)
        await asyncio.sleep(0.5)
        w.core.tell(started=[Started(second.seq_id, [], 8, 3)])
        await asyncio.sleep(0.5)
        w.core.tell_token(second.seq_id, 12, 1, finished=[Finished(second.seq_id, "stop", 2)])
        assert not (await finishes_of(gateway))[1].stages
        w.core.tell_token(first.seq_id, 13, 1, finished=[Finished(first.seq_id, "stop", 2)])
        stages = {"prefill.queue": 0.5, "prefill.compute": 0.0, "decode": 1.0}
        assert stages_of((await finishes_of(gateway))[0]) == stages


@virtual
async def test_a_handoff_that_no_choice_wants_any_more_ends() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        sampling = {"num_choices": 2}
        add = await submitted(w, gateway, prefill_endpoint="prefill:1", sampling=sampling)
        await gateway.say(cancel_choices={"handle": 1, "choices": [0]})
        assert await sent_until_idle(w) == []
        await gateway.say(cancel_choices={"handle": 1, "choices": [1]})
        finishes = await finishes_of(gateway, 2)
        assert {finish.reason for finish in finishes.values()} == {"cancelled"}
        assert {each.seq_id for each in await sent_until_idle(w)} == set(seq_ids(add))


@virtual
async def test_an_attempt_that_fails_before_its_first_token_is_refused() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, handle=7)
        w.core.tell(refused=[SequenceRefused(add.seq_id, "no_room", "the pool is full")])
        refused = (await gateway.read()).refused
        assert (refused.request_id, refused.epoch, refused.handle) == ("r7", 1, 7)
        assert refused.failure.reason == "no_room"
        assert w.front.num_attempts == 0


@virtual
async def test_an_attempt_that_fails_later_finishes_every_open_choice_with_the_failure() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 3})
        first, second, third = seq_ids(add)
        w.core.tell(started=[Started(first, [], 0, 3)])
        w.core.tell_token(first, 11)
        w.core.tell_token(second, 12, finished=[Finished(second, "stop", 1)])
        w.core.tell(finished=[Finished(third, "internal", 0)])
        finishes = await finishes_of(gateway, 3)
        assert finishes[1].reason == "stop"
        assert {finishes[choice].failure.reason for choice in (0, 2)} == {"internal"}
        assert [finishes[choice].num_output_tokens for choice in range(3)] == [1, 1, 0]
        assert (await w.core.next(Abort)).seq_id == first
        assert w.front.num_attempts == 0


@virtual
async def test_an_attempt_lasts_until_its_last_choice_and_only_that_tells_the_stages() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 2})
        first, second = seq_ids(add)
        w.core.tell(started=[Started(first, [], 0, 3)])
        w.core.tell_token(first, 11, finished=[Finished(first, "stop", 1)])
        assert not (await finishes_of(gateway))[0].stages
        assert w.front.num_attempts == 1
        w.core.tell_token(second, 12, finished=[Finished(second, "stop", 1)])
        assert (await finishes_of(gateway))[1].stages
        assert w.front.num_attempts == 0


@pytest.mark.parametrize("has_token", [False, True])
@virtual
async def test_the_deadline_ends_an_attempt_wherever_it_is(has_token: bool) -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, deadline_ms=700)
        if has_token:
            w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
            w.core.tell_token(add.seq_id, 11)
            failure = (await finishes_of(gateway))[0].failure
        else:
            failure = (await gateway.read()).refused.failure
        assert failure.reason == "deadline_exceeded"
        assert w.clock.now() == pytest.approx(0.7)
        assert (await w.core.next(Abort)).seq_id == add.seq_id


@virtual
async def test_a_deadline_is_forgotten_with_its_attempt() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, deadline_ms=700)
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        w.core.tell_token(add.seq_id, 11, finished=[Finished(add.seq_id, "stop", 1)])
        assert (await finishes_of(gateway))[0].reason == "stop"
        await asyncio.sleep(1.0)
        await gateway.submit(handle=2, request_id="r1", epoch=2)
        assert (await w.core.next(AddSequence)).seq_id != add.seq_id


@virtual
async def test_a_cancel_frees_every_choice_and_tells_how_far_it_came() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 2})
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        w.core.tell_token(add.seq_id, 11)
        assert list((await step_of(gateway)).ids) == [11]
        await gateway.say(cancel={"request_id": "r1", "epoch": 1})
        finishes = await finishes_of(gateway, 2)
        assert {finish.reason for finish in finishes.values()} == {"cancelled"}
        assert [finishes[choice].num_output_tokens for choice in (0, 1)] == [1, 0]
        assert await sent_until_idle(w) == [Abort(seq_id) for seq_id in seq_ids(add)]
        assert w.front.num_attempts == 0


@virtual
async def test_an_attempt_ends_when_all_its_choices_were_cancelled_one_by_one() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 2})
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        w.core.tell_token(add.seq_id, 11)
        await step_of(gateway)
        await gateway.say(cancel_choices={"handle": 1, "choices": [1, 1, 9]})
        assert list(await finishes_of(gateway)) == [1]
        assert w.front.num_attempts == 1
        await gateway.say(cancel_choices={"handle": 1, "choices": [0, 1]})
        assert list(await finishes_of(gateway)) == [0]
        assert w.front.num_attempts == 0


@virtual
async def test_credit_reaches_the_choice_that_it_is_for() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 2}, initial_credit_tokens=4)
        credits = {"handles": [1, 1, 5], "choices": [1, 9, 0], "up_to_index": [20, 30, 40]}
        await gateway.say(credits=credits)
        assert await sent_until_idle(w) == [Credit(seq_ids(add)[1], 20)]


@virtual
async def test_a_gateway_that_leaves_frees_its_attempts_and_is_told_nothing() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        await gateway.say(bye={})
        assert (await w.core.next(Abort)).seq_id == add.seq_id
        assert await gateway.has_ended()
        assert w.front.num_attempts == 0


@virtual
async def test_a_grammar_without_a_tokenizer_to_try_it_is_never_sent_to_the_core() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await gateway.submit(sampling={"regex": "a+"})
        refused = (await gateway.read()).refused
        assert "tokenizer" in refused.failure.message
        assert not [each for each in await sent_until_idle(w) if isinstance(each, AddSequence)]


@virtual
async def test_a_prefill_worker_that_cannot_be_reached_fails_the_request() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, prefill_endpoint="prefill:1")
        assert add.kind == "remote"
        w.core.tell(admitted=[Admitted(add.seq_id, 0)])
        refused = (await gateway.read()).refused
        assert refused.failure.reason == "handoff_failed"
        assert (await w.core.next(Abort)).seq_id == add.seq_id
