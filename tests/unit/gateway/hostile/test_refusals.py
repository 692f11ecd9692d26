"""What a refusal says of a hostile value: its field, and no more of the value than is short."""

import json
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai.endpoints import ENDPOINTS
from tests.unit.gateway.stored.clients import Caller, with_store

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def refused(fields: dict[str, Any], path: str = "/v1/chat/completions") -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ENDPOINTS[path].parse(json.dumps(fields).encode())
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "a" * 5000}, "reasoning_effort"),
        ({"reasoning_effort": "\U0001f600" * 64}, "reasoning_effort"),
        ({"reasoning_effort": "x - at `$.stop[9].z`"}, "reasoning_effort"),
        ({"response_format": {"type": "c" * 5000}}, "response_format.type"),
        ({"early_stopping": "q" * 5000}, "early_stopping"),
        ({"stream_options": {"d\n" * 5000: 1}}, ("stream_options." + "d\n" * 5000)[:64]),
        ({"stream_options": {"": 1}}, "stream_options."),
        ({"stream_options": {"x` - at `$.y[9]": 1}}, "stream_options.x` - at `$.y[9]"),
    ],
)
def test_a_value_is_quoted_if_it_is_short_and_never_taken_for_a_path(
    fields: dict[str, Any], param: str
) -> None:
    error = refused(CHAT | fields)
    assert error.param == param
    assert len(error.message) < 200


@pytest.mark.parametrize("value", [1, ["a"], {"a": 1}, "x" * 513])
@pytest.mark.parametrize("name", ["id", "status", "phase"])
def test_what_items_repeat_is_short_text(name: str, value: Any) -> None:
    item = {"role": "user", "content": "hi", name: value}
    error = refused({"model": "m", "input": [item]}, "/v1/responses")
    assert error.param == f"input[0].{name}"


@pytest.mark.parametrize("name", ["index", "bytes", "sizes", "{made}:items", "a b", "x" * 300])
def test_nothing_is_stored_under_a_name_that_the_store_does_not_give(name: str) -> None:
    async def scenario(caller: Caller) -> None:
        item = {"role": "user", "content": "hi"}
        made = (await caller.call("POST", "/v1/conversations", {"items": [item]})).json["id"]
        wanted = name.replace("{made}", made)
        for path in (f"/v1/responses/{wanted}", f"/v1/conversations/{wanted}"):
            assert (await caller.get(path)).status == 404
        assert (await caller.create(previous_response_id=wanted)).status == 400
        assert (await caller.create(conversation=wanted)).status == 404

    with_store(scenario)
