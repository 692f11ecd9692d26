"""An answer that a spent budget ended says so in each endpoint's own form."""

import json

import pytest

from services.gateway.openai.generation import Delta, FinishReason, Usage
from tests.unit.gateway.openai.test_logprob_objects import answer, whole_of

SPENT = Delta(0, "x", FinishReason.LENGTH, spent_budget="budget of money of the tenant")
USAGE = Usage(1, 0, 1)
MESSAGE = "The budget of money of the tenant had no room for the rest of this answer."


def last_choice(stream: bytes) -> dict:
    return json.loads(stream.split(b"data: ")[-1])["choices"][0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_choice_has_the_error_beside_a_reason_that_every_client_knows(path):
    [whole] = json.loads(whole_of(answer(path), [SPENT]))["choices"]
    for choice in (whole, last_choice(answer(path).deltas([SPENT]))):
        assert choice["finish_reason"] == "length"
        assert choice["error"]["code"] == "insufficient_quota"
        assert choice["error"]["message"] == MESSAGE


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_other_choices_have_no_such_field(path):
    full = Delta(0, "x", FinishReason.LENGTH)
    [whole] = json.loads(whole_of(answer(path), [full]))["choices"]
    assert "error" not in whole
    assert "error" not in last_choice(answer(path).deltas([full]))


def test_a_response_is_incomplete_with_the_error():
    whole = json.loads(whole_of(answer("/v1/responses"), [SPENT]))
    stream = answer("/v1/responses")
    stream.deltas([SPENT])
    closing = b"".join(stream.closing(USAGE)).split(b"data: ")[-1]
    for response in (whole, json.loads(closing)["response"]):
        assert response["status"] == "incomplete"
        assert response["error"] == {
            "code": "rate_limit_exceeded",
            "message": f"insufficient_quota: {MESSAGE}",
        }
