"""The best of several choices, in legacy completions."""

import json
from typing import Any

import msgspec
import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai import completions
from services.gateway.openai.completions import CompletionAnswer
from services.gateway.openai.generation import (
    Delta,
    FinishReason,
    Identity,
    TokenDetails,
    TokenLogprob,
    Usage,
)


def request_of(**fields: Any) -> Any:
    return completions.parse(msgspec.json.encode({"model": "m", "prompt": "x", **fields}))


def said(choice: int, text: str, *logprobs: float) -> Delta:
    entries = tuple(TokenLogprob(0, b"t", each, ()) for each in logprobs)
    return Delta(choice, text, FinishReason.STOP, entries)


def choices_of(request: Any, num_choices: int, batch: list[Delta]) -> list[Any]:
    answer = CompletionAnswer(Identity("r1", 0, "m", "f" * 32, num_choices), request)
    answer.collect(batch)
    choices: list[Any] = json.loads(b"".join(answer.whole(Usage(1, 0, 9))))["choices"]
    return choices


THREE = [said(0, "unlikely", -3.0), said(1, "long", -1.0, -1.0, -1.0), said(2, "likely", -0.5)]


def test_the_choices_with_the_likeliest_tokens_are_told_best_first() -> None:
    request = request_of(best_of=3, n=2)
    assert (request.num_choices, request.num_logprobs) == (3, 0)
    told = choices_of(request, 3, THREE)
    assert [(each["index"], each["text"]) for each in told] == [(0, "likely"), (1, "long")]
    assert told[0]["logprobs"] is None


def test_logprobs_stay_with_their_choice() -> None:
    request = request_of(best_of=3, logprobs=1)
    [told] = choices_of(request, 3, THREE)
    assert told["logprobs"]["token_logprobs"] == [-0.5]


def test_an_answer_without_tokens_and_the_logprobs_of_a_prompt_do_not_count() -> None:
    request = request_of(best_of=2, echo=True, logprobs=0)
    prompt = TokenLogprob(0, b"x", -9.0, ())
    echoes = [Delta(n, "x", None, (prompt,), details=TokenDetails(True)) for n in (0, 1)]
    [told] = choices_of(request, 2, [*echoes, said(0, ""), said(1, "one", -5.0)])
    assert told["text"] == "xone"


def test_each_prompt_of_a_list_tells_its_own_best() -> None:
    request = request_of(best_of=2, prompt=["x", "y"])
    batch = [said(0, "a", -2.0), said(1, "b", -1.0), said(2, "c", -3.0), said(3, "d", -4.0)]
    told = choices_of(request, 4, batch)
    assert [(each["index"], each["text"]) for each in told] == [(0, "b"), (1, "c")]


def test_a_best_of_as_many_as_are_told_changes_nothing() -> None:
    request = request_of(best_of=2, n=2, stream=True)
    assert (request.best_of, request.num_logprobs) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 2, "n": 3},
        {"best_of": 2, "stream": True},
        {"best_of": 2, "use_beam_search": True, "temperature": 0},
    ],
)
def test_what_does_not_go_with_best_of_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request_of(**fields)
    assert caught.value.param == "best_of"
