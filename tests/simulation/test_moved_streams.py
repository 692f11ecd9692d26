"""Streams whose worker dies at a random token are the same, for the client, as streams undisturbed.

Each seed asks the same question twice, of two fleets: one that nothing happens to, and one whose
decode or prefill workers die, drain or lose their core once or twice while the answer runs.
"""

import asyncio
import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.v1 import quota_pb2
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Answer, Fleet, fleet_of, load_sim_model

NUM_SEEDS = 300 if os.environ.get("BATON_TEST_LONG") else 5
FAULTS = ("kill", "kill_process", "drain")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 7},
    "three choices": {"temperature": 1.0, "seed": 3, "n": 3},
    "logprobs": {"temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 2, "n": 2},
    "penalties": {"temperature": 0.7, "seed": 1, "frequency_penalty": 1.1, "min_p": 0.01},
    # More tokens than may be on their way at once.
    "beam search": {"use_beam_search": True, "n": 2, "max_tokens": 90},
}
MAX_TOKENS = 60


@dataclass
class Trail(Answer):
    """An answer with all that a client is told, and when its n-th piece came."""

    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    is_at: dict[int, asyncio.Event] = field(default_factory=dict)

    def take(self, batch: list[Any]) -> None:
        super().take(batch)
        for delta in batch:
            self.logprobs.setdefault(delta.choice, []).extend(delta.logprobs)
        for number, event in self.is_at.items():
            if self.num_batches >= number:
                event.set()

    def told(self) -> tuple[Any, ...]:
        return self.texts, self.finish_reasons, self.logprobs, self.usage


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


async def ask(fleet: Fleet, fields: dict[str, Any], trail: Trail) -> quota_pb2.UsageRecord:
    text = "the beginning of a long story " * 4
    await fleet.ask(text, trail, request_id="r1", **{"max_tokens": MAX_TOKENS, **fields})
    (record,) = fleet.quota.settled
    return record


async def strike(fleet: Fleet, rng: random.Random, trail: Trail, is_search: bool) -> None:
    """Take away a worker that has part in the request, at up to two moments of it."""
    for at in sorted(rng.sample(range(1, MAX_TOKENS), rng.choice([1, 1, 2]))):
        event = trail.is_at.setdefault(at, asyncio.Event())
        if is_search or rng.random() < 0.2:
            # Before its first token, or soon after; a search brings all its tokens at the end.
            await asyncio.sleep(rng.uniform(0, 0.5 if is_search else 0.05))
        else:
            await event.wait()
        pick = fleet.local_router.picks[-1]
        endpoint = rng.choice([pick.decode, pick.decode, pick.prefill]).endpoint
        if endpoint not in fleet.workers:
            continue
        match rng.choice(FAULTS):
            case "kill":
                fleet.kill(endpoint)
            case "kill_process":
                fleet.kill_process(endpoint)
            case "drain":
                await fleet.drain(endpoint, cap_s=rng.choice([0.0, 0.1]))


def run(seed: int, model: ServedModel, fields: dict[str, Any], *, faults: bool) -> Any:
    rng, clock = random.Random(seed), VirtualClock()

    async def scenario() -> Any:
        sizes = {"num_prefill": 3, "num_decode": 3, "num_blocks": 512}
        # The same seed: a request that names none draws the same one.
        async with fleet_of(0, clock, model, **sizes) as fleet:
            trail = Trail()
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(ask(fleet, fields, trail))
                striking = None
                if faults:
                    is_search = "use_beam_search" in fields
                    striking = tasks.create_task(strike(fleet, rng, trail, is_search))
                record = await asking
                if striking is not None:
                    striking.cancel()
            if fields.keys() <= {"temperature", "seed", "n"} and "seed" in fields:
                for choice, text in trail.texts.items():
                    assert text == fleet.expected("r1", MAX_TOKENS, fields["seed"], choice)
            await fleet.quiet()
            return trail, record

    return run_virtual(scenario(), clock)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_the_same_wherever_its_worker_is_lost(kind: str, model: ServedModel) -> None:
    fields = KINDS[kind]
    alone, bill = run(0, model, fields, faults=False)
    num_moved = 0
    for seed in range(NUM_SEEDS):
        moved, record = run(seed, model, fields, faults=True)
        assert moved.told()[:3] == alone.told()[:3], f"seed {seed}"
        assert moved.usage.num_prompt_tokens == alone.usage.num_prompt_tokens
        assert moved.usage.num_output_tokens == alone.usage.num_output_tokens
        counts = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "finish_reason")
        for name in counts:
            assert getattr(record, name) == getattr(bill, name), f"seed {seed}: {name}"
        assert record.num_wasted_tokens == bill.num_wasted_tokens == 0
        spent = {stage.name: stage.duration_us for stage in record.stages}
        assert sum(spent.values()) == pytest.approx(record.wall_us, abs=len(spent))
        num_moved += record.num_attempts > 1
        assert ("move" in spent) <= (record.num_attempts > 1)
    assert num_moved >= NUM_SEEDS // 2, "the faults missed"


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_stop_string_is_found_wherever_the_worker_is_lost(seed: int, model: ServedModel) -> None:
    fields = {"temperature": 1.0, "seed": 7}
    whole, _ = run(0, model, fields, faults=False)
    text = whole.texts[0]
    stop = text[len(text) // 2 : len(text) // 2 + 5]
    alone, bill = run(0, model, {**fields, "stop": stop}, faults=False)
    moved, record = run(seed, model, {**fields, "stop": stop}, faults=True)
    assert moved.told()[:2] == alone.told()[:2]
    assert record.num_output_tokens == bill.num_output_tokens


def test_choices_move_to_a_worker_with_room_for_one_prompt_and_their_own_tokens(
    model: ServedModel,
) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        # 25 blocks of prompt, and 7 of each choice.
        sizes = {"num_prefill": 1, "num_decode": 2, "num_blocks": 60}
        async with fleet_of(1, clock, model, **sizes) as fleet:
            answer = Trail()
            almost = answer.is_at.setdefault(80, asyncio.Event())
            fields = {"n": 3, "max_tokens": 100, "seed": 1, "request_id": "r1"}
            asking = asyncio.create_task(fleet.ask("x" * 380, answer, **fields))
            await almost.wait()
            fleet.kill_process(fleet.local_router.picks[-1].decode.endpoint)
            async with asyncio.timeout(5):
                await asking
            for choice in range(3):
                assert answer.texts[choice] == fleet.expected("r1", 100, 1, choice)

    run_virtual(scenario(), clock)


def test_the_next_life_of_the_only_worker_serves_the_stream(model: ServedModel) -> None:
    clock, fields = VirtualClock(), KINDS["seeded"]

    async def scenario() -> None:
        sizes = {"num_prefill": 1, "num_decode": 1, "num_blocks": 512}
        async with fleet_of(0, clock, model, **sizes) as fleet:
            trail = Trail()
            is_at = trail.is_at.setdefault(20, asyncio.Event())
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(ask(fleet, fields, trail))
                await is_at.wait()
                endpoint = fleet.local_router.picks[0].decode.endpoint
                worker = fleet.kill_process(endpoint)
                await asyncio.sleep(7)
                fleet.start_worker(worker.deps.worker_id, endpoint)
                record = await asking
            assert trail.texts[0] == fleet.expected("r1", MAX_TOKENS, fields["seed"])
            assert (record.num_attempts, record.num_output_tokens) == (2, MAX_TOKENS)

    run_virtual(scenario(), clock)
