"""Random frames lost, doubled, delayed and damaged between the workers, seeded."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.testing.virtual_clock import virtual
from tests.simulation.workers.fleet import Answer, Fleet, fleet

pytestmark = pytest.mark.usefixtures("by_each_transport")

HANDSHAKE = ("hello", "bye")


class Chaos:
    """Tampers with every handoff frame but the handshake; one instance per direction."""

    def __init__(self, seed: int, rate: float) -> None:
        self._rng = random.Random(seed)
        self._rate = rate
        self._held: list[Any] = []
        self.is_over = False

    def __call__(self, frame: Any) -> list[Any]:
        held, self._held = self._held, []
        if frame.WhichOneof("frame") in HANDSHAKE:
            return [frame]  # a new stream: what was held of the old one is gone with it
        if self.is_over:
            return [*held, frame]
        if self._rng.random() >= self._rate:
            return [frame, *held]  # what was held back arrives late, and out of order
        action = self._rng.choice(["drop", "double", "hold", "damage"])
        if action == "drop":
            return held
        if action == "hold":
            self._held = [*held, frame]
            return []
        if action == "double":
            return [frame, frame, *held]
        self._damage(frame)
        return [frame, *held]

    def _damage(self, frame: Any) -> None:
        if frame.WhichOneof("frame") == "blocks" and frame.blocks.HasField("pool_ref"):
            ids = frame.blocks.pool_ref.block_ids
            ids[self._rng.randrange(len(ids))] ^= 1 << self._rng.randrange(8)
        elif frame.WhichOneof("frame") == "blocks":
            data = bytearray(frame.blocks.data)
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            frame.blocks.data = bytes(data)


def check_answer(f: Fleet, prompt: list[int], answer: Answer) -> bool:
    """Every token is right, however it ended; True when it ended well."""
    assert answer.is_over
    tokens = answer.tokens.get(0, [])
    alone = f.lone_run(prompt, 10, temperature=0.8, seed=1)
    assert tokens == alone[: len(tokens)]
    if answer.refused:
        assert len(answer.refused) == 1
        assert not answer.finishes
        assert not tokens
        return False
    if answer.finishes[0].HasField("failure"):
        return False
    assert tokens == alone
    return True


@given(seed=st.integers(0, 10_000), rate=st.sampled_from([0.02, 0.1, 0.4]))
@settings(max_examples=40, deadline=None)
def test_whatever_happens_to_frames_no_wrong_token_is_served_and_nothing_leaks(
    seed: int, rate: float
) -> None:
    @virtual
    async def scenario() -> None:
        rng = random.Random(seed)
        sizes = {"num_blocks": 512}
        # Layers leave one by one, or together.
        layers = {"min_group_bytes": rng.choice([1, 1 << 30])}
        async with fleet(decode_sizes=sizes, prefill_sizes=sizes | layers) as f:
            chaos = [Chaos(seed, rate), Chaos(seed + 1, rate)]
            f.to_decode, f.to_prefill = chaos
            prompts = [[rng.randrange(900) for _ in range(rng.randrange(1, 150))] for _ in range(8)]
            answers = []
            for prompt in prompts:
                answers.append(
                    await f.gateway.submit(
                        prompt, max_tokens=10, temperature=0.8, seed=1, deadline_ms=20_000
                    )
                )
                await asyncio.sleep(rng.random() / 20)
            if rng.random() < 0.3:
                f.handoff_streams[-1].cancel()
            for prompt, answer in zip(prompts, answers, strict=True):
                await answer.over()
                check_answer(f, prompt, answer)
            for direction in chaos:
                direction.is_over = True
            await f.settle(8)
            prompt = [5] * 40
            last = await f.gateway.submit(prompt, max_tokens=10, temperature=0.8, seed=1)
            await last.over()
            assert check_answer(f, prompt, last), "a clean request after the faults"

    scenario()
