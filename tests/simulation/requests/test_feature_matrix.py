"""Every feature of an answer is the same aggregated, split, and after the loss of its worker.

Aggregated: decode workers prefill by themselves. Split: prefill workers do, and hand over. Lost: as
split, and the decode worker's process dies in the middle of the answer.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Answer, Fleet, fleet_of, load_sim_model

QUESTION = "the beginning of a long story " * 4
SCHEMA = {
    "type": "object",
    "properties": {"word": {"enum": ["prefill", "decode"]}, "depth": {"enum": [1, 2, 3]}},
    "required": ["word", "depth"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": " ?"},
}
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "place", "schema": SCHEMA},
}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 40}
LONG = {**SEEDED, "max_tokens": 200}
FEATURES: dict[str, dict[str, Any]] = {
    "usage": {"temperature": 0, "max_tokens": 40},
    "seed": SEEDED,
    "n": {**SEEDED, "n": 3},
    "logprobs": {**SEEDED, "logprobs": True, "top_logprobs": 2},
    # From the middle of the text, with its ends inside of two tokens.
    "stop": {**LONG, "stop": ["35w372w4"]},
    "schema": {**LONG, "response_format": FORM},
    "tools": {**LONG, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "tools or schema": {**LONG, "tools": TOOLS, "response_format": FORM, "seed": 3},
    "echo": {"path": "/v1/completions", **SEEDED, "echo": True, "logprobs": 1},
}
NUM_BATCHES_BEFORE_LOSS = 5


@dataclass
class Told(Answer):
    """All that a client is told, and the event of its n-th batch."""

    logprobs: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    is_running: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, batch: list[Any]) -> None:
        super().take(batch)
        for delta in batch:
            self.logprobs += [(delta.choice, entry) for entry in delta.logprobs]
            self.calls += [(delta.choice, call) for call in delta.calls]
        if self.num_batches >= NUM_BATCHES_BEFORE_LOSS:
            self.is_running.set()

    @property
    def features(self) -> dict[str, Any]:
        """Choices may come in another order, and calls in other pieces."""
        arguments: dict[Any, str] = {}
        for choice, call in self.calls:
            key = (choice, call.number)
            arguments[key] = arguments.get(key, "") + call.arguments
        return {
            "texts": self.texts,
            "reasons": self.finish_reasons,
            "logprobs": sorted(self.logprobs, key=lambda entry: entry[0]),
            "names": [
                (choice, call.call_id, call.name) for choice, call in self.calls if call.name
            ],
            "arguments": arguments,
            "usage": (self.usage.num_prompt_tokens, self.usage.num_output_tokens),
        }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


async def lose_worker(fleet: Fleet, told: Told) -> None:
    await told.is_running.wait()
    fleet.kill_process(fleet.local_router.picks[-1].decode.endpoint)


def answered(model: ServedModel, fields: dict[str, Any], way: str) -> dict[str, Any]:
    clock = VirtualClock()

    async def scenario() -> dict[str, Any]:
        num_prefill = 0 if way == "aggregated" else 1
        sizes = {"num_prefill": num_prefill, "num_decode": 2, "has_grammars": True}
        async with fleet_of(0, clock, model, **sizes) as fleet:
            told = Told()
            losing = asyncio.ensure_future(lose_worker(fleet, told)) if way == "lost" else None
            await fleet.ask(QUESTION, told, request_id="r1", **fields)
            if losing is not None:
                assert told.is_running.is_set(), "the answer was too short"
                await losing
                assert len(fleet.local_router.picks) > 1, "nothing was lost"
            await fleet.quiet()
            return told.features

    return run_virtual(scenario(), clock)


@pytest.mark.parametrize("feature", FEATURES)
def test_an_answer_is_the_same_aggregated_split_and_after_a_loss(
    feature: str, model: ServedModel
) -> None:
    fields = FEATURES[feature]
    split = answered(model, fields, "split")
    assert answered(model, fields, "aggregated") == split
    assert answered(model, fields, "lost") == split
    reasons = set(split["reasons"].values())
    match feature:
        case "tools":
            assert reasons == {"tool_calls"}
            assert [name for _, _, name in split["names"]] == ["look_up"]
        case "schema" | "stop":
            assert "stop" in reasons
        case "logprobs" | "echo":
            assert split["logprobs"]
