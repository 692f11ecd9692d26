"""`truncation: auto` leaves out the oldest turns of a conversation that is too long."""

import json

from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.stored.clients import Caller

# The model takes 2048 tokens, of a byte each in these tests.
LONG = "x" * 400


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_the_oldest_turns_go_until_the_prompt_and_some_answer_fit() -> None:
    async def scenario(fleet: Fleet) -> None:
        caller = Caller(fleet)
        turns = [said("user", f"{number}{LONG}") for number in range(9)]
        refused = await caller.create(turns, instructions="be short")
        assert refused.json["error"]["code"] == "context_length_exceeded"
        fleet.tokenizer.encoded.clear()
        fields = {"truncation": "auto", "instructions": "be short", "max_output_tokens": 5}
        answer = await caller.create(turns, **fields)
        assert (answer.status, answer.json["truncation"]) == (200, "auto")
        sizes = [len(request.chat.messages_json) for request in fleet.tokenizer.encoded]
        submitted = fleet.worker.submits[-1].num_prompt_tokens
        (used,) = [
            json.loads(request.chat.messages_json)
            for request in fleet.tokenizer.encoded
            if len(request.chat.messages_json) == submitted
        ]
        assert used[0] == said("system", "be short")
        assert used[-1] == turns[-1]
        longer = len(json.dumps([said("system", "be short"), *turns[-len(used) :]]))
        assert submitted + 5 <= 2048 < longer + 5, "one more would not have fitted"
        assert len(sizes) <= 6, "a bisection"

    simulate(scenario)


def test_a_conversation_is_reserved_as_long_as_it_will_be_and_not_refused_for_what_it_loses() -> (
    None
):
    async def scenario(fleet: Fleet) -> None:
        turns = [said("user", f"{number}{LONG}") for number in range(99)]
        answer = await Caller(fleet).create(turns, truncation="auto", max_output_tokens=48)
        assert answer.status == 200
        first = fleet.quota.reserved[0]
        assert (first.num_prompt_tokens, first.min_prompt_tokens) == (2000, 1)
        assert len(fleet.quota.reserved) == 1

    simulate(scenario)


def test_a_result_goes_with_its_call() -> None:
    async def scenario(fleet: Fleet) -> None:
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c1", "output": LONG}
        items = [said("user", LONG * 3), call, result, said("user", LONG)]
        answer = await Caller(fleet).create(items, truncation="auto")
        assert answer.status == 200
        submitted = fleet.worker.submits[-1].num_prompt_tokens
        sent = [request.chat.messages_json for request in fleet.tokenizer.encoded]
        (used,) = {text for text in sent if len(text) == submitted}
        assert json.loads(used)[0]["role"] != "tool"

    simulate(scenario)


def test_a_last_turn_that_is_too_long_is_refused() -> None:
    async def scenario(fleet: Fleet) -> None:
        for turns in ([said("user", LONG * 9)], [said("user", "a"), said("user", LONG * 9)]):
            refused = await Caller(fleet).create(turns, truncation="auto")
            assert refused.json["error"]["code"] == "context_length_exceeded"

    simulate(scenario)
