"""A pair of workers under random load: small pools, slow readers, deadlines, cancels, bad frames,
lost streams. Every token is right, every request ends, and both pools are as before."""

import asyncio
import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from baton.engine.protocol.messages import SamplingParams
from baton.testing.engine_driver import encode_tokens
from baton.testing.lone_beam_search import lone_beam_search
from baton.testing.virtual_clock import run_virtual
from baton.wire.v1 import worker_pb2
from tests.simulation.workers.fleet import Answer, FakeGateway, Fleet, fleet

NUM_SEEDS = 200 if os.environ.get("BATON_TEST_LONG") else 15
NUM_REQUESTS = 25
TRANSIENT = ("no_room", "overloaded")


@dataclass
class Wish:
    """One request of the schedule."""

    request_id: str
    prompt: list[int]
    num_choices: int
    max_tokens: int
    num_emitted: int
    is_slow: bool
    cancel_after_s: float | None
    # A choice that is cancelled by itself, after cancel_after_s, instead of the whole.
    cancelled_choice: int | None
    fields: dict[str, Any]


def make_wish(f: Fleet, rng: random.Random, number: int, prefixes: list[list[int]]) -> Wish:
    prompt = rng.choice(prefixes) + [rng.randrange(900) for _ in range(rng.randint(0, 40))]
    num_choices, max_tokens = rng.choice([1, 1, 1, 2, 4]), rng.randint(1, 70)
    alone = f.lone_run(prompt, max_tokens)
    num_emitted = min(rng.choice([0, 0, 5]), len(alone) - 1) if num_choices == 1 else 0
    is_slow = rng.random() < 0.5
    fields: dict[str, Any] = {"initial_credit_tokens": rng.randint(1, 8)} if is_slow else {}
    if num_emitted:
        ids = encode_tokens(alone[:num_emitted])
        fields["emitted"] = [worker_pb2.EmittedTokens(choice=0, token_ids=ids)]
    if rng.random() < 0.3:
        fields["prefill_endpoint"] = ""
    if rng.random() < 0.2:
        fields["deadline_ms"] = rng.randint(1, 1500)
    if num_emitted == 0 and rng.random() < 0.2:
        fields["use_beam_search"] = True
        max_tokens = min(max_tokens, 12)
        num_choices = min(num_choices, f.decode.engine.info.max_num_seqs)
    cancel_after_s = rng.uniform(0, 1) if rng.random() < 0.3 else None
    cancelled_choice = rng.randrange(num_choices) if num_choices > 1 else None
    return Wish(
        f"r{number}",
        prompt,
        num_choices,
        max_tokens,
        num_emitted,
        is_slow,
        cancel_after_s,
        rng.choice([None, cancelled_choice]),
        fields,
    )


async def read_slowly(
    gateway: FakeGateway, handle: int, wish: Wish, answer: Answer, rng: random.Random
) -> None:
    up_to = wish.num_emitted
    while not answer.is_over:
        await asyncio.sleep(rng.uniform(0, 0.3))
        up_to += rng.randint(1, 8)
        for choice in range(wish.num_choices):
            await gateway.credit(handle, choice, up_to)


async def run_wish(gateway: FakeGateway, wish: Wish, rng: random.Random) -> Answer:
    """Submit until there is room, read at its own pace, perhaps leave early."""
    epoch = 0
    while True:
        epoch += 1
        answer = await gateway.submit(
            wish.prompt,
            part_tokens=rng.choice([7, 1_000_000]),
            request_id=wish.request_id,
            epoch=epoch,
            max_tokens=wish.max_tokens,
            num_choices=wish.num_choices,
            **wish.fields,
        )
        async with asyncio.TaskGroup() as tasks:
            if wish.is_slow:
                handle = answer.handle
                tasks.create_task(read_slowly(gateway, handle, wish, answer, rng))
            try:
                async with asyncio.timeout(wish.cancel_after_s):
                    await answer.over()
            except TimeoutError:
                if wish.cancelled_choice is None:
                    await gateway.cancel(wish.request_id, epoch)
                else:
                    await gateway.cancel_choices(answer.handle, wish.cancelled_choice)
            async with asyncio.timeout(60):
                await answer.over()
        has_room = not (answer.refused and answer.refused[0].failure.reason in TRANSIENT)
        if has_room or epoch == 100:
            return answer
        await asyncio.sleep(rng.uniform(0.05, 0.2))


def check(f: Fleet, wish: Wish, answer: Answer) -> None:
    results: list[list[int]] = []
    if "use_beam_search" in wish.fields:
        params = SamplingParams(wish.max_tokens, beam_width=wish.num_choices)
        results = lone_beam_search(f.runner, wish.prompt, params)
    for choice, tokens in answer.tokens.items():
        alone = (
            results[choice] if results else f.lone_run(wish.prompt, wish.max_tokens, choice=choice)
        )
        alone = alone[wish.num_emitted :]
        assert tokens == alone[: len(tokens)], f"{wish.request_id}: wrong tokens"
        finish = answer.finishes.get(choice)
        if finish is not None and finish.reason in ("stop", "length"):
            assert tokens == alone, f"{wish.request_id}: ended early"
            assert finish.num_output_tokens == wish.num_emitted + len(tokens)


def sizes(rng: random.Random) -> dict[str, Any]:
    max_num_seqs = rng.choice([2, 4, 16])
    return {
        "num_blocks": rng.choice([16, 24, 64]),
        "max_num_seqs": max_num_seqs,
        "max_step_tokens": rng.choice([16, 32, 64]),
        "max_waiting": rng.choice([3, 64]),
    }


def spoil(rng: random.Random, num_left: int) -> Any:
    """Flip a bit in a few Blocks frames."""

    def tamper(frame: Any) -> list[Any]:
        nonlocal num_left
        if frame.WhichOneof("frame") == "blocks" and num_left and rng.random() < 0.3:
            num_left -= 1
            frame.blocks.data = bytes([frame.blocks.data[0] ^ 1]) + frame.blocks.data[1:]
        return [frame]

    return tamper


async def cut_streams(f: Fleet, rng: random.Random) -> None:
    for _ in range(rng.choice([0, 0, 2])):
        await asyncio.sleep(rng.uniform(0, 1.5))
        if f.handoff_streams:
            f.handoff_streams[-1].cancel()


async def scenario(seed: int) -> None:
    rng = random.Random(seed)
    options = {"mean_output_tokens": rng.choice([0, 0, 30])}
    pools = {"decode_sizes": sizes(rng), "prefill_sizes": sizes(rng)}
    async with fleet(**pools, runner_options=options, is_ahead=seed % 2 == 1) as f:
        f.to_decode = spoil(rng, rng.choice([0, 0, 3]))
        gateways = [f.gateway, await f.connect()]
        prefixes = [[rng.randrange(900) for _ in range(rng.randint(1, 60))] for _ in range(3)]

        async def one(number: int) -> None:
            await asyncio.sleep(rng.uniform(0, 1.5))
            wish = make_wish(f, rng, number, prefixes)
            check(f, wish, await run_wish(rng.choice(gateways), wish, rng))

        async def audit() -> None:
            while True:
                await asyncio.sleep(0.01)
                f.decode.engine.check_integrity()
                f.prefill.check()

        async with asyncio.TaskGroup() as background:
            auditing = background.create_task(audit())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(cut_streams(f, rng))
                for number in range(NUM_REQUESTS):
                    tasks.create_task(one(number))
            auditing.cancel()
        await f.settle(7)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_any_schedule_ends_with_right_tokens_and_both_pools_as_before(seed: int) -> None:
    run_virtual(scenario(seed))
