"""Embeddings through a whole fleet: every vector is its own input's, whatever happens around it."""

import asyncio
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.simulation.fleet import Answer, running_fleet

NUM_INPUTS = 40


@dataclass
class Vectors(Answer):
    """The Sink of a request for embeddings; vectors by input."""

    vectors: dict[int, list[float]] = field(default_factory=dict)

    def take(self, batch: list[Any]) -> None:
        for delta in batch:
            assert delta.choice not in self.vectors, "a vector comes once"
            self.vectors[delta.choice] = array("f", delta.details.vector).tolist()


def expected(pooling: str, ids: list[int]) -> list[float]:
    """As FakeRunner has states: the token's id, its place, ones."""
    last = len(ids) - 1
    if pooling == "lasttoken":
        return [ids[-1], last, 1, 1]
    return [sum(ids) / len(ids), last / 2, 1, 1]


@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
def test_vectors_are_right_although_a_worker_dies_among_them(tmp_path: Path, pooling: str) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        async with running_fleet(1, clock, tmp_path, pooling) as fleet:
            texts = [f"{'together ' * (number % 40)}{number}" for number in range(NUM_INPUTS)]
            answer = Vectors()

            async def die() -> None:
                while len(answer.vectors) < NUM_INPUTS // 4:
                    await asyncio.sleep(0.001)
                fleet.kill_process("sim:2")

            fleet._tasks.create_task(die())
            fields = {"path": "/v1/embeddings", "texts": texts, "request_id": "r"}
            await fleet.ask("", answer, **fields)
            files = msgspec.msgpack.decode(fleet.model.artifact.data)
            tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
            prompts = [tokenizer.encode(text).ids for text in texts]
            for number, ids in enumerate(prompts):
                assert answer.vectors[number] == pytest.approx(expected(pooling, ids))
            assert answer.usage.num_prompt_tokens == sum(map(len, prompts))
            [record] = fleet.quota.settled
            assert (record.endpoint, record.finish_reason) == ("embeddings", "stop")
            assert record.num_prompt_tokens == answer.usage.num_prompt_tokens
            assert record.num_output_tokens == 0
            assert record.num_attempts > 1
            assert record.engine.prefill_us > 0

    run_virtual(scenario(), clock)
