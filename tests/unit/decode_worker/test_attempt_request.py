"""One Submit as all its choices read it: which run, from where, and what cannot have been."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from baton.engine.protocol.messages import Grammar, SamplingParams
from baton.testing.engine_driver import encode_tokens
from baton.wire.failures import InvalidRequest
from baton.wire.v1 import worker_pb2
from services.decode_worker.attempt_request import AttemptRequest, check_room

PROMPT = range(10)
MAX_MODEL_LEN = 16


def make(
    num_choices: int = 1,
    emitted: Mapping[int, Sequence[int]] | None = None,
    *,
    ended: Sequence[int] = (),
    endpoint: str = "prefill:1",
    **sampling: Any,
) -> AttemptRequest:
    submit = worker_pb2.Submit(
        request_id="r1",
        sampling={"num_choices": num_choices},
        emitted=[
            worker_pb2.EmittedTokens(choice=choice, token_ids=encode_tokens(tokens))
            for choice, tokens in (emitted or {}).items()
        ],
        ended_choices=ended,
        prefill_endpoint=endpoint,
    )
    return AttemptRequest(submit, encode_tokens(PROMPT), b"", SamplingParams(8, **sampling), None)


def test_a_submit_without_a_number_of_choices_has_one() -> None:
    request = make(0)
    assert (request.num_choices, request.choices) == (1, [0])
    assert (request.request_id, request.num_prompt_tokens) == ("r1", 10)


def test_choices_that_ended_in_earlier_attempts_take_no_part() -> None:
    assert make(4, ended=[2, 0]).choices == [1, 3]


def test_a_search_begins_anew_with_all_its_results() -> None:
    request = make(3, {1: [7, 8]}, ended=[0], beam_width=3)
    assert request.is_search
    assert request.choices == [0, 1, 2]
    assert request.shares_prompt
    assert request.emitted_ids(1) == b""
    assert request.num_received(1) == 2


def test_output_tokens_of_earlier_attempts_come_in_parts_and_belong_to_their_choices() -> None:
    request = make(3, {0: [7], 2: [5, 6]})
    more = worker_pb2.EmittedTokens(choice=0, token_ids=encode_tokens([8, 9]))
    request.submit.emitted.append(more)
    assert request.emitted_ids(0) == encode_tokens([7, 8, 9])
    assert request.emitted_ids(1) == b""
    assert [request.num_received(choice) for choice in range(3)] == [3, 0, 2]


@pytest.mark.parametrize(
    ("emitted", "shares"), [({}, True), ({0: []}, True), ({0: [7]}, False), ({1: [7]}, False)]
)
def test_choices_share_the_prompt_until_one_has_output(
    emitted: dict[int, list[int]], shares: bool
) -> None:
    assert make(2, emitted).shares_prompt == shares


@pytest.mark.parametrize(
    ("endpoint", "num_prompt_logprobs", "is_here"),
    [("", None, True), ("prefill:1", None, False), ("prefill:1", 0, True), ("prefill:1", 5, True)],
)
def test_a_prompt_whose_logprobs_are_wanted_is_prefilled_here(
    endpoint: str, num_prompt_logprobs: int | None, is_here: bool
) -> None:
    request = make(endpoint=endpoint, num_prompt_logprobs=num_prompt_logprobs)
    assert request.prefills_here == is_here


def test_prompt_logprobs_come_once_with_the_first_choice_before_its_first_token() -> None:
    fresh = make(2, num_prompt_logprobs=3)
    assert [fresh.sampling_of(choice).num_prompt_logprobs for choice in (0, 1)] == [3, None]
    later = make(2, {0: [7]}, num_prompt_logprobs=3)
    assert [later.sampling_of(choice).num_prompt_logprobs for choice in (0, 1)] == [None, None]
    assert later.sampling_of(1).max_tokens == 8


@pytest.mark.parametrize("kind", ["ebnf", "json_schema"])
def test_a_grammar_that_passed_the_gate_is_used_here_and_told_to_the_prefill_worker(
    kind: Any,
) -> None:
    request = make()
    grammar = Grammar(kind, "root ::= x")
    request.use_grammar(grammar)
    assert request.sampling.grammar == grammar
    assert request.submit.sampling.ebnf_grammar == ("root ::= x" if kind == "ebnf" else "")


@pytest.mark.parametrize(
    ("emitted", "ended"),
    [({}, []), ({0: [7]}, [1]), ({0: [1] * 6}, []), ({1: []}, [0]), ({0: [7], 1: [8]}, [0])],
)
def test_what_may_have_been_is_accepted(emitted: dict[int, list[int]], ended: list[int]) -> None:
    make(2, emitted, ended=ended).check_earlier(MAX_MODEL_LEN)


@pytest.mark.parametrize(
    ("emitted", "ended", "cause"),
    [
        ({2: [7]}, [], "of 2 choices 2 cannot have begun"),
        ({}, [5], "of 2 choices 5 cannot have begun"),
        ({}, [0, 1], "all choices ended"),
        ({}, [0, 1, 0], "all choices ended"),
        ({1: [1] * 7}, [], "choice 1 cannot have 7 output tokens"),
    ],
)
def test_what_cannot_have_been_is_refused(
    emitted: dict[int, list[int]], ended: list[int], cause: str
) -> None:
    with pytest.raises(InvalidRequest, match=cause):
        make(2, emitted, ended=ended).check_earlier(MAX_MODEL_LEN)


def test_half_a_token_is_refused() -> None:
    request = make()
    request.submit.emitted.append(worker_pb2.EmittedTokens(choice=0, token_ids=b"abc"))
    with pytest.raises(InvalidRequest, match="choice 0"):
        request.check_earlier(MAX_MODEL_LEN)


def test_parts_of_output_tokens_end_at_what_all_choices_could_have() -> None:
    submit = make(2, {0: [1] * 16, 1: [1] * 16}).submit
    check_room(submit, MAX_MODEL_LEN)
    submit.emitted.append(worker_pb2.EmittedTokens(choice=7, token_ids=b"x"))
    with pytest.raises(InvalidRequest, match="129 bytes"):
        check_room(submit, MAX_MODEL_LEN)
