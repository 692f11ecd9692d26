"""Blocks that the decode worker's core reads out of the prefill worker's device, late and wrong."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from baton.testing.virtual_clock import virtual
from baton.worker import instruments
from tests.simulation.workers.fleet import Answer, Fleet, blocks_frames, fleet
from tests.simulation.workers.memory_nixl import Fabric

PROMPT = list(range(100, 150))


def device_fleet(fabric: Fabric, **options: Any) -> AbstractAsyncContextManager[Fleet]:
    decode = {"agent": fabric.agent("decode"), "num_blocks": 48} | options
    prefill = {"agent": fabric.agent("prefill"), "num_blocks": 48} | options
    return fleet(decode_sizes=decode, prefill_sizes=prefill)


def count(counter: Any, *labels: str) -> float:
    return float(counter.labels(*labels)._value.get())


@virtual
async def test_blocks_are_read_from_device_to_device_and_the_fronts_see_no_bytes() -> None:
    async with device_fleet(Fabric(max_delay_s=0.05)) as f:
        links = count(instruments.HANDOFF_LINKS, "nixl-device")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        frames = blocks_frames(f.frames)
        assert frames
        assert all(len(frame.pool_ref.page_checksums) == frame.num_blocks for frame in frames)
        pools = f.prefill.client.pool, f.decode.client.pool
        assert not any(any(pool) for pool in pools), "nothing went through the shared pools"
        assert count(instruments.HANDOFF_LINKS, "nixl-device") == links + 2
        await f.settle(1)


@virtual
async def test_a_longer_prompt_hands_over_what_an_earlier_one_left_in_both_caches() -> None:
    async with device_fleet(Fabric(max_delay_s=0.05)) as f:
        await (await f.gateway.submit(PROMPT)).over()

        longer = await (await f.gateway.submit([*PROMPT, *range(40)])).over()

        assert longer.tokens[0] == f.lone_run([*PROMPT, *range(40)])
        await f.settle(1)


@virtual
async def test_every_third_block_is_checked_when_that_is_asked_for() -> None:
    async with device_fleet(Fabric(), checksum_every=3) as f:
        prompt = list(range(100))  # blocks 0 to 6

        answer = await (await f.gateway.submit(prompt)).over()

        assert answer.tokens[0] == f.lone_run(prompt)
        checked = {
            frame.first_block + each.place
            for frame in blocks_frames(f.frames)
            for each in frame.pool_ref.page_checksums
        }
        assert checked == {0, 3, 6}


@virtual
async def test_a_wrong_page_is_found_and_its_prompt_comes_again_by_the_plain_transport() -> None:
    fabric = Fabric(flip_rate=1.0)
    async with device_fleet(fabric) as f:
        bad = count(instruments.HANDOFF_BAD_BLOCKS, "checksum")
        fallbacks = count(instruments.HANDOFF_FALLBACKS, "nixl-device")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert count(instruments.HANDOFF_BAD_BLOCKS, "checksum") == bad + 1
        assert count(instruments.HANDOFF_FALLBACKS, "nixl-device") == fallbacks + 1
        assert blocks_frames(f.frames)[-1].HasField("data")
        await f.settle(1)


@virtual
async def test_a_cached_block_that_was_never_in_the_shared_pool_goes_through_it_when_it_must() -> (
    None
):
    fabric = Fabric()
    async with device_fleet(fabric) as f:
        await (await f.gateway.submit(PROMPT)).over()
        fabric.flip_rate = 1.0

        longer = await (await f.gateway.submit([*PROMPT, *range(40)])).over()

        assert longer.tokens[0] == f.lone_run([*PROMPT, *range(40)])


@virtual
async def test_a_peer_that_cannot_be_reached_hands_over_by_the_plain_transport() -> None:
    fabric = Fabric()
    async with device_fleet(fabric) as f:
        fabric.agents["prefill"].is_reachable = False

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        await f.settle(1)


@virtual
async def test_reads_that_take_long_are_waited_for_while_some_arrive() -> None:
    fabric = Fabric(seed=3, max_delay_s=4.0)
    async with device_fleet(fabric, max_step_tokens=16, max_num_seqs=4) as f:
        prompt = list(range(120))  # 16 reads, two at a time
        answer = await (await f.gateway.submit(prompt)).over()

        assert answer.tokens[0] == f.lone_run(prompt)
        await f.settle(10)


@pytest.mark.parametrize("seed", [1, 2, 5])
@virtual
async def test_late_reads_of_cancelled_requests_reach_no_block_that_is_used_again(
    seed: int,
) -> None:
    rng = random.Random(seed)
    fabric = Fabric(seed, max_delay_s=0.4, failure_rate=0.02 * (seed % 2))
    async with device_fleet(fabric) as f:
        prompts = [[rng.randrange(900) for _ in range(rng.randrange(8, 90))] for _ in range(12)]
        answers = [(prompt, await run_one(f, prompt, rng)) for prompt in prompts]
        for prompt, answer in answers:
            await answer.over()
            tokens = answer.tokens.get(0, [])
            assert tokens == f.lone_run(prompt)[: len(tokens)]
        assert any(answer.finishes[0].num_output_tokens == 8 for _, answer in answers)
        await f.settle(6)
        await asyncio.sleep(fabric.max_delay_s)
    assert fabric.num_landed > 5
    assert fabric.num_astray == 0


async def run_one(f: Fleet, prompt: list[int], rng: random.Random) -> Answer:
    """Submit it, and cancel some of them at a random moment."""
    number = len(f.gateway.answers)
    answer = await f.gateway.submit(prompt, request_id=f"request-{number}")
    if rng.random() < 0.5:
        await asyncio.sleep(rng.random() * 0.4)
        await f.gateway.cancel(f"request-{number}")
    return answer
