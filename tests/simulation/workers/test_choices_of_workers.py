"""Several choices of one prompt, and beam searches, on a pair of workers."""

import asyncio
from typing import Any

import pytest

from baton.engine.protocol.messages import SamplingParams
from baton.testing.engine_driver import encode_tokens
from baton.testing.lone_beam_search import lone_beam_search
from baton.testing.virtual_clock import virtual
from baton.wire.v1 import handoff_pb2, worker_pb2
from tests.simulation.workers.fleet import STEP_S, Answer, Fleet, fleet, pass_on

PROMPT = [(3 * i) % 99 for i in range(50)]
SEEDED = {"temperature": 1.0, "seed": 3}
HERE, THERE = {"prefill_endpoint": ""}, {}


def alone(f: Fleet, choice: int, max_tokens: int = 8) -> list[int]:
    return f.lone_run(PROMPT, max_tokens, choice=choice, **SEEDED)


@virtual
async def test_one_handoff_serves_all_choices() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, num_choices=3, **SEEDED)).over()

        assert answer.tokens == {choice: alone(f, choice) for choice in range(3)}
        assert len({tuple(tokens) for tokens in answer.tokens.values()}) == 3
        assert [list(p.fork_choices) for p in f.kinds("prefill")] == [[1, 2]]
        assert len(f.kinds("done")) == 1
        # Of the choices only the first has a prefill to tell of.
        assert list(answer.prefills) == [0]
        await f.settle(1)


@virtual
async def test_the_first_tokens_of_all_choices_come_before_the_blocks() -> None:
    async with fleet() as f:
        f.delay_s = lambda frame: 1.0 if frame.HasField("blocks") else 0.0
        answer = await f.gateway.submit(PROMPT, num_choices=3, **SEEDED)
        await answer.first_token()
        await asyncio.sleep(STEP_S)
        assert {choice: len(tokens) for choice, tokens in answer.tokens.items()} == {
            0: 1,
            1: 1,
            2: 1,
        }
        await answer.over()
        await f.settle(1)


@virtual
async def test_choices_share_a_prompt_that_is_prefilled_here() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(PROMPT[:40], **HERE)).over()
        steps: list[int] = []
        f.decode.deps.dispatcher.observe(lambda events: steps.append(events.num_step_tokens))
        answer = await (await f.gateway.submit(PROMPT, num_choices=3, **SEEDED, **HERE)).over()
        assert answer.tokens == {choice: alone(f, choice) for choice in range(3)}
        assert sum(steps) == 18 + 3 * 7
        assert {c: p.num_cached_tokens for c, p in answer.prefills.items()} == {0: 32}
        await f.settle(1)


@virtual
async def test_choices_with_output_of_earlier_attempts_go_on_each_from_its_own() -> None:
    async with fleet() as f:
        emitted = [
            worker_pb2.EmittedTokens(choice=choice, token_ids=encode_tokens(alone(f, choice)[:2]))
            for choice in range(2)
        ]
        answer = await f.gateway.submit(PROMPT, num_choices=2, emitted=emitted, **SEEDED)
        await answer.over()
        assert answer.tokens == {choice: alone(f, choice)[2:] for choice in range(2)}
        assert len(f.kinds("prefill")) == 2
        await f.settle(1)


@pytest.mark.parametrize("where", [HERE, THERE], ids=["here", "there"])
@pytest.mark.parametrize("unwanted", [0, 1])
@virtual
async def test_one_choice_is_cancelled_and_its_blocks_are_free_while_the_others_go_on(
    where: dict[str, Any], unwanted: int
) -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, num_choices=2, max_tokens=60, **SEEDED, **where)
        while any(len(answer.tokens.get(choice, [])) < 40 for choice in range(2)):
            await asyncio.sleep(STEP_S)
        before = f.decode.num_used_blocks
        await f.gateway.cancel_choices(answer.handle, unwanted, 77)
        await asyncio.sleep(2 * STEP_S)
        assert answer.finishes[unwanted].reason == "cancelled"
        # What it shared stays: the prompt's three full blocks.
        assert f.decode.num_used_blocks == before - 3
        await answer.over()
        assert answer.tokens[1 - unwanted] == alone(f, 1 - unwanted, 60)
        await f.settle(1)


@pytest.mark.parametrize("is_first_there", [False, True])
@virtual
async def test_the_leader_of_a_handoff_is_cancelled_and_the_other_choices_get_their_prompt(
    is_first_there: bool,
) -> None:
    async with fleet() as f:
        f.delay_s = lambda frame: 0.5 if frame.HasField("blocks") else 0.0
        answer = await f.gateway.submit(PROMPT, num_choices=3, **SEEDED)
        if is_first_there:
            await answer.first_token()
        await f.gateway.cancel_choices(answer.handle, 0)
        await answer.over()
        assert answer.finishes[0].reason == "cancelled"
        assert [answer.tokens[choice] for choice in (1, 2)] == [alone(f, 1), alone(f, 2)]
        await f.settle(1)


@virtual
async def test_cancelling_every_choice_in_a_handoff_ends_it() -> None:
    async with fleet() as f:
        f.delay_s = lambda frame: 0.5 if frame.HasField("blocks") else 0.0
        answer = await f.gateway.submit(PROMPT, num_choices=2, **SEEDED)
        await answer.first_token()
        await f.gateway.cancel_choices(answer.handle, 0)
        await f.gateway.cancel_choices(answer.handle, 1)
        await answer.over()
        assert {finish.reason for finish in answer.finishes.values()} == {"cancelled"}
        await f.settle(1)


@virtual
async def test_choices_that_end_with_their_first_tokens_need_no_blocks() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, num_choices=3, max_tokens=1, **SEEDED)
        await answer.over()
        assert answer.tokens == {choice: alone(f, choice, 1) for choice in range(3)}
        assert f.kinds("blocks")[3:] == []  # full blocks left while the prompt was computed
        assert answer.prefills[0].num_blocks_received == 0
        await f.settle(1)


@virtual
async def test_a_choice_that_ends_with_its_first_token_leaves_the_others_their_blocks() -> None:
    async with fleet() as f:
        stop = alone(f, 0)[0]
        answer = await f.gateway.submit(PROMPT, num_choices=2, stop_token_ids=[stop], **SEEDED)
        await answer.over()
        assert answer.tokens == {0: [stop], 1: alone(f, 1)}
        assert answer.finishes[0].reason == "stop"
        await f.settle(1)


@virtual
async def test_bad_blocks_are_asked_for_again_and_no_first_token_is_told_twice() -> None:
    async with fleet() as f:
        num_left = 1

        def spoil(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
            nonlocal num_left
            if frame.HasField("blocks") and num_left:
                num_left -= 1
                frame.blocks.data = bytes([frame.blocks.data[0] ^ 1]) + frame.blocks.data[1:]
            return [frame]

        f.to_decode = spoil
        answer = await (await f.gateway.submit(PROMPT, num_choices=3, **SEEDED)).over()
        assert answer.tokens == {choice: alone(f, choice) for choice in range(3)}
        assert len(f.kinds("prefill")) == 2
        await f.settle(1)


@virtual
async def test_a_prefill_worker_that_knows_no_forks_serves_them_too() -> None:
    async with fleet() as f:

        def forget(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
            if frame.HasField("first_tokens"):
                del frame.first_tokens.forks[:]
            return [frame]

        f.to_decode = forget
        answer = await (await f.gateway.submit(PROMPT, num_choices=3, **SEEDED)).over()
        assert answer.tokens == {choice: alone(f, choice) for choice in range(3)}
        await f.settle(1)


@pytest.mark.parametrize("num_told", [0, 1])
@virtual
async def test_first_tokens_that_leave_choices_without_blocks_end_the_attempt_and_not_the_worker(
    num_told: int,
) -> None:
    async with fleet() as f:

        def forget(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
            if frame.HasField("first_tokens"):
                del frame.first_tokens.forks[num_told:]
            return [frame]

        f.to_decode = forget
        answer = await f.gateway.submit(PROMPT, num_choices=3, max_tokens=1, **SEEDED)
        await answer.over()
        assert [refused.failure.reason for refused in answer.refused] == ["handoff_failed"]
        f.to_decode = pass_on
        answer = await (await f.gateway.submit(PROMPT, **SEEDED)).over()
        assert answer.tokens[0] == alone(f, 0)
        await f.settle(1)


def results(f: Fleet, width: int, max_tokens: int) -> dict[int, list[int]]:
    params = SamplingParams(max_tokens, beam_width=width)
    return dict(enumerate(lone_beam_search(f.runner, PROMPT, params)))


async def search(f: Fleet, width: int, max_tokens: int, **fields: Any) -> Answer:
    return await f.gateway.submit(
        PROMPT, use_beam_search=True, num_choices=width, max_tokens=max_tokens, **fields
    )


@pytest.mark.parametrize("where", [HERE, THERE], ids=["here", "there"])
@virtual
async def test_a_beam_search_brings_its_results_best_first(where: dict[str, Any]) -> None:
    async with fleet(runner_options={"mean_output_tokens": 8, "vocab_size": 100}) as f:
        answer = await (await search(f, 3, 20, **where)).over()
        assert answer.tokens == results(f, 3, 20)
        assert list(answer.prefills) == [0]
        assert len(f.kinds("prefill")) == (0 if where else 1)
        stages = {stage.name: stage.duration_us for stage in answer.finishes[2].stages}
        stages |= {stage.name: stage.duration_us for stage in answer.finishes[0].stages}
        assert stages["decode"] > stages["prefill.compute"]
        await f.settle(1)


@virtual
async def test_results_of_a_search_go_out_with_credit_and_hold_no_blocks_meanwhile() -> None:
    async with fleet(runner_options={"vocab_size": 100}) as f:
        answer = await search(f, 2, 10, initial_credit_tokens=4)
        await answer.first_token()
        await asyncio.sleep(STEP_S)
        expected = results(f, 2, 10)
        assert answer.tokens == {choice: tokens[:4] for choice, tokens in expected.items()}
        assert f.decode.num_used_blocks == 0
        for choice in range(2):
            await f.gateway.credit(answer.handle, choice, 10)
        await answer.over()
        assert answer.tokens == expected
        await f.settle(1)


@virtual
async def test_what_does_not_go_with_a_beam_search_is_refused_by_name() -> None:
    async with fleet() as f:
        answer = await (await search(f, 2, 5, temperature=0.5)).over()
        assert answer.refused[0].failure.param == "temperature"
        answer = await (await search(f, 65, 5)).over()
        assert answer.refused[0].failure.reason == "invalid_value"
        await f.settle(1)


@pytest.mark.parametrize("fields", [("top_ids", "top_logprobs"), ("top_ids",)])
@virtual
async def test_a_search_without_likeliest_tokens_ends_and_not_the_core(
    fields: tuple[str, ...],
) -> None:
    async with fleet() as f:

        def forget(frame: handoff_pb2.PrefillFrame) -> list[handoff_pb2.PrefillFrame]:
            if frame.HasField("first_tokens"):
                for name in fields:
                    del getattr(frame.first_tokens.logprobs, name)[1:]
            return [frame]

        f.to_decode = forget
        answer = await search(f, 3, 6)
        await answer.over()
        assert [refused.failure.reason for refused in answer.refused] == ["handoff_failed"]
        f.to_decode = pass_on
        answer = await search(f, 3, 6)
        await answer.over()
        assert answer.tokens == results(f, 3, 6)
        await f.settle(1)
