"""A request that moved to this decode worker goes on where its earlier attempts ended."""

import asyncio
from typing import Any

import pytest

from baton.engine.protocol.messages import SamplingParams
from baton.testing.engine_driver import encode_tokens
from baton.testing.lone_beam_search import lone_beam_search
from baton.testing.virtual_clock import virtual
from baton.wire.v1 import worker_pb2
from tests.simulation.workers.fleet import Fleet, fleet

PROMPT = [(3 * i) % 99 for i in range(50)]
SEEDED = {"temperature": 1.0, "seed": 3}
HERE, THERE = {"prefill_endpoint": ""}, {}
EVERYWHERE = pytest.mark.parametrize("where", [HERE, THERE], ids=["here", "there"])


def alone(f: Fleet, choice: int) -> list[int]:
    return f.lone_run(PROMPT, 8, choice=choice, **SEEDED)


def emitted(tokens: dict[int, list[int]]) -> list[worker_pb2.EmittedTokens]:
    return [
        worker_pb2.EmittedTokens(choice=choice, token_ids=encode_tokens(ids))
        for choice, ids in tokens.items()
    ]


@EVERYWHERE
@virtual
async def test_each_choice_goes_on_behind_its_own_tokens(where: dict[str, Any]) -> None:
    async with fleet() as f:
        whole = [alone(f, choice) for choice in range(3)]
        had = {0: whole[0][:5], 2: whole[2][:1]}
        fields = {"num_choices": 3, "num_logprobs": 1, "emitted": emitted(had), **SEEDED}
        answer = await f.gateway.submit(PROMPT, **fields, **where)
        await answer.over()
        assert answer.tokens == {0: whole[0][5:], 1: whole[1], 2: whole[2][1:]}
        assert [told.index for told in answer.logprobs[2]] == list(range(1, 8))
        assert {f.num_output_tokens for f in answer.finishes.values()} == {8}
        await f.settle(1)


@EVERYWHERE
@virtual
async def test_the_prompt_comes_once_for_all_choices(where: dict[str, Any]) -> None:
    async with fleet() as f:
        whole = [alone(f, choice) for choice in range(3)]
        had = emitted({choice: whole[choice][:2] for choice in range(3)})
        answer = await f.gateway.submit(PROMPT, num_choices=3, emitted=had, **SEEDED, **where)
        await answer.over()
        assert answer.tokens == {choice: whole[choice][2:] for choice in range(3)}
        if where == HERE:
            cached = {c: prefill.num_cached_tokens for c, prefill in answer.prefills.items()}
            assert cached == {0: 0, 1: 48, 2: 48}
        else:
            assert [prefill.first_missing_block for prefill in f.kinds("prefill")] == [0, 3, 3]
        await f.settle(1)


@EVERYWHERE
@pytest.mark.parametrize("is_gone", ["cancelled", "ended", "asked"])
@virtual
async def test_choices_that_wait_for_the_firsts_prompt_go_on_without_it(
    where: dict[str, Any], is_gone: str
) -> None:
    async with fleet() as f:
        whole = [alone(f, choice) for choice in range(3)]
        had = emitted({choice: whole[choice][:2] for choice in range(3)})
        fields = {"num_choices": 3, "emitted": had, **SEEDED, **where}
        if is_gone == "ended":  # with its very next token
            fields["stop_token_ids"] = [whole[0][2]]
        answer = await f.gateway.submit(PROMPT, **fields)
        if is_gone == "cancelled":
            await f.gateway.cancel_choices(answer.handle, 0)
        if is_gone == "asked":
            while not f.decode.num_used_blocks:
                await asyncio.sleep(0)
            await f.gateway.cancel_choices(answer.handle, 0, 1)
        await answer.over()
        assert answer.tokens[2] == whole[2][2:]
        if is_gone != "asked":
            assert answer.tokens[1] == whole[1][2:]
        await f.settle(1)


@virtual
async def test_one_that_waits_and_is_cancelled_lets_nobody_begin_before_the_prompt() -> None:
    async with fleet() as f:
        whole = [alone(f, choice) for choice in range(3)]
        had = emitted({choice: whole[choice][:2] for choice in range(3)})
        answer = await f.gateway.submit(PROMPT, num_choices=3, emitted=had, **SEEDED)
        await f.gateway.cancel_choices(answer.handle, 1)
        await answer.over()
        assert answer.tokens[2] == whole[2][2:]
        assert [prefill.first_missing_block for prefill in f.kinds("prefill")] == [0, 3]
        await f.settle(1)


@virtual
async def test_choices_that_wait_for_the_firsts_prompt_end_with_their_attempt() -> None:
    async with fleet() as f:
        had = emitted({choice: alone(f, choice)[:2] for choice in range(3)})
        await f.gateway.submit(PROMPT, num_choices=3, emitted=had, **SEEDED)
        await f.gateway.cancel("request-1")
        await f.settle(1)


@EVERYWHERE
@virtual
async def test_a_choice_that_ended_is_not_run_again(where: dict[str, Any]) -> None:
    async with fleet() as f:
        whole = [alone(f, choice) for choice in range(3)]
        fields = {"num_choices": 3, "emitted": emitted({2: whole[2][:4]}), **SEEDED}
        answer = await f.gateway.submit(PROMPT, ended_choices=[0], **fields, **where)
        answer.num_choices = 2
        await answer.over()
        assert answer.tokens == {1: whole[1], 2: whole[2][4:]}
        # The stages are told, though choice 0 has none.
        stages = [stage.name for finish in answer.finishes.values() for stage in finish.stages]
        assert stages[-1] == "decode"
        assert "prefill.compute" in stages
        await f.settle(1)


@virtual
async def test_choices_without_tokens_still_share_their_prompt_when_another_has_ended() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, num_choices=3, ended_choices=[1], **SEEDED)
        answer.num_choices = 2
        await answer.over()
        assert answer.tokens == {choice: alone(f, choice) for choice in (0, 2)}
        assert [list(p.fork_choices) for p in f.kinds("prefill")] == [[2]]
        await f.settle(1)


@EVERYWHERE
@virtual
async def test_a_search_begins_anew_and_skips_what_the_gateway_has(where: dict[str, Any]) -> None:
    async with fleet(runner_options={"vocab_size": 100}) as f:
        params = SamplingParams(10, beam_width=3)
        results = lone_beam_search(f.runner, PROMPT, params)
        answer = await f.gateway.submit(
            PROMPT,
            use_beam_search=True,
            num_choices=3,
            max_tokens=10,
            emitted=emitted({0: results[0], 1: results[1][:4]}),
            ended_choices=[0],
            **where,
        )
        await answer.over()
        assert answer.tokens == {1: results[1][4:], 2: results[2]}
        assert answer.finishes[0].reason == "cancelled"
        await f.settle(1)


@virtual
async def test_output_tokens_may_come_in_parts_of_their_own() -> None:
    async with fleet() as f:
        whole = alone(f, 0)
        had = emitted({0: whole[:2]}) + emitted({0: whole[2:5]})
        answer = await f.gateway.submit(PROMPT, part_tokens=20, emitted=had, **SEEDED)
        answer.first_index = {0: 5}
        await answer.over()
        assert answer.tokens == {0: whole[5:]}
        await f.settle(1)


@pytest.mark.parametrize(
    "told",
    [
        {"ended_choices": [0, 1]},
        {"ended_choices": [2]},
        {"emitted": emitted({7: [1]})},
        {"emitted": [worker_pb2.EmittedTokens(choice=0, token_ids=b"abc")]},
        {"emitted": emitted({1: [1] * 4096})},
    ],
    ids=["all ended", "unknown ended", "unknown choice", "half a token", "more than fit"],
)
@virtual
async def test_what_cannot_have_been_is_refused(told: dict[str, Any]) -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, num_choices=2, **told)
        await answer.over()
        assert answer.refused[0].failure.reason == "invalid_value"
        await f.settle(1)
