"""Each feature of a request is answered alike by workers that do both steps, by workers that split
them, and after the worker that wrote the answer has died.

The answers are compared as clients get them: whole HTTP bodies, but for ids and times.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Fleet, fleet_of, load_sim_model
from tests.unit.gateway.stored.clients import Answered, Caller

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STORY = "the beginning of a long story " * 4
# Long enough to be struck in the middle, and with an end.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{30,40}$"},
        "is_new": {"type": "boolean"},
    },
    "required": ["name", "is_new"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": " ?"},
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA, "strict": True}}
SEEDED = {"temperature": 1.0, "seed": 7}


@dataclass(frozen=True)
class Feature:
    """Fields of a request, and what its answer must have for the feature to be there."""

    fields: dict[str, Any]
    is_in: Callable[[str], bool]
    path: str = CHAT


def has(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.search(pattern, text) is not None


FEATURES = {
    "n": Feature({"n": 3, **SEEDED}, has('"index":2,')),
    "logprobs": Feature({"logprobs": True, "top_logprobs": 2, **SEEDED}, has('"top_logprobs":.."')),
    "tools": Feature(
        {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200, **SEEDED},
        has('"look_up".*"finish_reason":"tool_calls"'),
    ),
    "schema": Feature(
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "it", "schema": SCHEMA},
            },
            "max_tokens": 200,
            **SEEDED,
        },
        has('is_new.*"finish_reason":"stop"'),
    ),
    "stop": Feature({"stop": ["w693"], **SEEDED}, has('"finish_reason":"stop"')),
    "seed": Feature(SEEDED, has('"finish_reason":"length"')),
    "usage": Feature(
        {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0},
        has('"completion_tokens":60,'),
    ),
    "echo": Feature(
        {"echo": True, "logprobs": 2, **SEEDED}, has("the beginning of a long"), COMPLETIONS
    ),
}


@dataclass(frozen=True)
class Shape:
    """Workers, and whether one of them dies in the middle of the answer."""

    num_prefill: int
    num_decode: int
    is_struck: bool = False


SHAPES = {
    "aggregated": Shape(0, 2),
    "split": Shape(2, 2),
    "after a failover": Shape(2, 2, is_struck=True),
    "aggregated, after a failover": Shape(0, 2, is_struck=True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


def ask(feature: Feature, shape: Shape, model: ServedModel) -> str:
    """What a client is told."""
    clock = VirtualClock()

    async def scenario() -> str:
        sizes = {"num_prefill": shape.num_prefill, "num_decode": shape.num_decode}
        async with fleet_of(0, clock, model, **sizes, num_blocks=512, has_grammars=True) as fleet:
            prompt = {"messages": [{"role": "user", "content": STORY}]}
            if feature.path == COMPLETIONS:
                prompt = {"prompt": STORY}
            body = {"model": "sim", "max_tokens": 60, **prompt, **feature.fields}
            headers = {"authorization": f"Bearer {fleet.api_key}"}
            async with asyncio.TaskGroup() as tasks:
                caller = Caller(fleet)
                asking = tasks.create_task(caller.call("POST", feature.path, body, headers))
                if shape.is_struck:
                    await strike(fleet)
                answered = await asking
            picks = fleet.local_router.picks
            assert len(picks) == 1 + shape.is_struck
            # A prompt whose logits are told is computed where its answer is written.
            if "echo" not in feature.fields:
                has_prefill = {bool(pick.prefill.endpoint) for pick in picks}
                assert has_prefill == {shape.num_prefill > 0}
            await fleet.quiet()
            return told(answered)

    return run_virtual(scenario(), clock)


async def strike(fleet: Fleet) -> None:
    """Kill the worker that writes the answer, some twenty steps after it was picked."""
    while not fleet.local_router.picks:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.15)
    fleet.kill_process(fleet.local_router.picks[-1].decode.endpoint)


def told(answered: Answered) -> str:
    """An answer without what differs between any two."""
    assert answered.status == 200, answered.body
    text = answered.body.decode()
    return re.sub(r'"(id|created)":("[^"]*"|\d+),', "", text)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_answered_alike_in_every_shape(name: str, model: ServedModel) -> None:
    feature = FEATURES[name]
    answers = {each: ask(feature, shape, model) for each, shape in SHAPES.items()}
    assert feature.is_in(answers["aggregated"]), answers["aggregated"]
    for shape, answer in answers.items():
        assert answer == answers["aggregated"], shape
