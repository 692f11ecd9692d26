"""The fields that the three endpoints take, and those that they refuse by name."""

import json
import typing
from array import array
from typing import Any

import msgspec
import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai import chat, completions, responses
from services.gateway.openai.chat import ChatFields, ChatMessage
from services.gateway.openai.completions import CompletionFields
from services.gateway.openai.decoding import decode_object
from services.gateway.openai.generation import ChatMessages, PlainText, PromptTokens, TokenRules
from services.gateway.openai.responses import ResponseFields
from services.gateway.openai.shared_fields import StreamOptions
from services.gateway.openai.structured import StructuredOutputs
from services.gateway.openai.vllm.tokenize import DetokenizeFields, TokenizeFields

HI = [{"role": "user", "content": "hi"}]


def chat_of(**fields: Any) -> Any:
    return chat.parse(msgspec.json.encode({"model": "m", "messages": HI, **fields}))


def completion_of(**fields: Any) -> Any:
    return completions.parse(msgspec.json.encode({"model": "m", "prompt": "x", **fields}))


def response_of(**fields: Any) -> Any:
    return responses.parse(msgspec.json.encode({"model": "m", "input": "x", **fields}))


def refusal(parse: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def turns(request: Any) -> list[dict[str, str]]:
    assert isinstance(request.prompt, ChatMessages)
    result: list[dict[str, str]] = json.loads(request.prompt.messages_json)
    return result


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b'{"model":"m"', "invalid_json"),
        (b'{"a":NaN}', "invalid_json"),
        (b'{"a":-Infinity}', "invalid_json"),
        (b'{"a":' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"a":1,"a":2}', "duplicate_key"),
        (b'{"b":[{"a":1,"a":2}]}', "duplicate_key"),
        (b'{"a":"\xff"}', "invalid_unicode"),
        (b'{"a":"\xc0\xaf"}', "invalid_unicode"),
        (b'{"a":"\\ud800"}', "invalid_unicode"),
        (b'{"a":["\\uDFFF x"]}', "invalid_unicode"),
        (b'\xef\xbb\xbf{"a":1}', "invalid_unicode"),
        (b'{"a":' + b"[" * 100_000, "json_too_deep"),
        (b'{"a":' + b"[" * 80 + b"]" * 80 + b"}", "json_too_deep"),
    ],
)
def test_bodies_that_parsers_let_pass_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_object(body)
    assert caught.value.reason == reason


def test_escaped_surrogate_pairs_nul_and_control_characters_are_text() -> None:
    assert decode_object(rb'{"a":"\ud83d\ude00\u0000\u0001"}') == {"a": "😀\0\1"}


def test_a_body_may_be_64_levels_deep() -> None:
    decode_object(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": True}, "n"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 10**9}, "n"),
        ({"max_tokens": 10.5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": ["a"] * 33}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", "x" * 1_000_000]}, "stop[1]"),
        ({"user": "x" * 1_000_000}, "user"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 1000}}, "metadata[...]"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 10_000}, "cache_salt"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_value_beyond_its_limit_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for parse in (chat_of, completion_of):
        error = refusal(parse, **fields)
        assert error.reason == "invalid_value"
        assert error.param == param
        assert error.message.startswith(param)
        assert len(error.message) < 300


def test_a_refusal_names_value_and_limit() -> None:
    message = refusal(chat_of, temperature=2.5).message
    assert "2.5" in message
    assert "2.0" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "a"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("service_tier", "flex"),
        ("store", True),
        ("web_search_options", {}),
        ("prompt_embeds", "AAAA"),
        ("guided_decoding_backend", "outlines"),
        ("a" * 1000, 1),
    ],
)
def test_what_this_version_does_not_have_is_refused_by_name(name: str, value: object) -> None:
    error = refusal(chat_of, **{name: value})
    assert error.reason == "unsupported_parameter"
    assert error.param == name[:64]


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "parallel_tool_calls": True},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}},
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"safety_identifier": "s", "prompt_cache_key": "k", "modalities": ["text"]},
        {"tools": None, "logprobs": None, "stop": None, "n": None, "stream_options": None},
        {"prompt_logprobs": None, "kv_transfer_params": None, "never_heard_of": None},
        {"skip_special_tokens": True, "add_generation_prompt": True, "priority": 0},
        {"echo": False, "best_of": 1, "bad_words": [], "chat_template_kwargs": {}},
        {"length_penalty": 1.0, "early_stopping": False},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields: dict[str, Any]) -> None:
    assert chat_of(**fields).num_choices == 1


def test_false_is_not_zero() -> None:
    assert refusal(chat_of, presence_penalty=False).param == "presence_penalty"
    assert refusal(completion_of, logprobs=False).param == "logprobs"
    assert refusal(chat_of, store=0).reason == "unsupported_parameter"


def test_sampling_fields_reach_the_request() -> None:
    request = chat_of(
        temperature=0.5, top_p=0.9, top_k=-1, seed=-3, n=2, stop="x", stop_token_ids=[7],
        ignore_eos=True, stream=True, stream_options={"include_usage": True}, cache_salt="s",
        max_completion_tokens=9,
    )  # fmt: skip
    assert (request.temperature, request.top_p, request.rules.top_k) == (0.5, 0.9, 0)
    assert (request.seed, request.num_choices, request.stop) == (-3, 2, ("x",))
    assert (request.rules.stop_token_ids, request.rules.ignore_eos) == ((7,), True)
    assert (request.stream, request.include_usage, request.cache_salt) == (True, True, "s")
    assert request.max_tokens == 9


def test_a_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat.parse(b'{"model":"m","messages":[],"temperature":1e999}')
    assert caught.value.param == "temperature"


def test_two_different_token_limits_are_refused() -> None:
    assert refusal(chat_of, max_tokens=3, max_completion_tokens=4).param == "max_completion_tokens"
    assert chat_of(max_tokens=3, max_completion_tokens=3).max_tokens == 3


def test_stream_options_need_a_stream_and_know_no_obfuscation() -> None:
    assert refusal(chat_of, stream_options={"include_usage": True}).param == "stream_options"
    error = refusal(chat_of, stream=True, stream_options={"include_obfuscation": True})
    assert error.param == "stream_options.include_obfuscation"
    error = refusal(chat_of, stream=True, stream_options={"other": 1})
    assert (error.reason, error.param) == ("unsupported_parameter", "stream_options.other")


def test_conversation_is_normalised_for_the_template() -> None:
    request = chat_of(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "ann"},
            {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None},
            {"role": "user", "content": [{"type": "text", "text": t} for t in "cd"]},
        ]
    )
    assert turns(request) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a", "name": "ann"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c\nd"},
    ]


@pytest.mark.parametrize(
    ("messages", "reason", "param"),
    [
        ([], "invalid_value", "messages"),
        ([3], "invalid_value", "messages[0]"),
        ([{"content": "x"}], "invalid_value", "messages[0].role"),
        ([{"role": "boss", "content": "x"}], "invalid_value", "messages[0].role"),
        ([{"role": "user"}], "invalid_value", "messages[0].content"),
        ([{"role": "user", "content": None}], "invalid_value", "messages[0].content"),
        ([{"role": "user", "content": 3}], "invalid_value", "messages[0].content"),
        ([{"role": "user", "content": []}], "invalid_value", "messages[0].content"),
        ([*HI, {"role": "tool", "content": "x"}], "invalid_value", "messages[1].tool_call_id"),
        ([*HI, {"role": "function", "content": "x"}], "invalid_value", "messages[1].role"),
        ([{"role": "user", "content": "x", "foo": 1}], "unsupported_parameter", "messages[0].foo"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "unsupported_content",
            "messages[0].content[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "invalid_value",
            "messages[0].content[0].text",
        ),
    ],
)
def test_messages_are_refused_by_place(messages: object, reason: str, param: str) -> None:
    error = refusal(chat_of, messages=messages)
    assert (error.reason, error.param) == (reason, param)


def test_missing_fields_are_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat.parse(b'{"messages":[]}')
    assert caught.value.param == "model"
    with pytest.raises(InvalidRequest) as caught:
        chat.parse(b'{"model":"m"}')
    assert caught.value.param == "messages"


def test_what_a_request_says_about_the_chat_template() -> None:
    plain, said = chat_of().prompt, chat_of(chat_template_kwargs={"enable_thinking": False}).prompt
    assert (plain.template_kwargs_json, plain.adds_generation_prompt) == (b"", True)
    assert said.template_kwargs_json == b'{"enable_thinking":false}'
    assert not chat_of(add_generation_prompt=False).prompt.adds_generation_prompt
    continued = chat_of(continue_final_message=True).prompt
    assert (continued.continues_final, continued.adds_generation_prompt) == (True, False)
    error = refusal(chat_of, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"
    error = refusal(chat_of, chat_template_kwargs={"a": "x" * 65536})
    assert error.param == "chat_template_kwargs"


def test_a_whole_number_may_be_written_with_a_point() -> None:
    request = completion_of(max_tokens=5.0, n=2.0, temperature=1.0, seed=-3.0)
    assert (request.max_tokens, request.num_choices, request.seed) == (5, 2, -3)
    assert type(request.max_tokens) is int
    assert refusal(completion_of, max_tokens=5.5).param == "max_tokens"
    assert "got 200" in refusal(completion_of, n=200.0).message
    assert refusal(completion_of, logprobs=1e300).param == "logprobs"


def test_completion_prompts() -> None:
    assert completion_of(prompt="abc").prompt == PlainText("abc")
    assert completion_of(prompt=["abc"]).prompt == PlainText("abc")
    ids = PromptTokens(array("I", [1, 2**32 - 1]).tobytes())
    assert completion_of(prompt=[1, 2**32 - 1]).prompt == ids
    assert completion_of(prompt=[[1, 2**32 - 1]]).prompt == ids
    assert completion_of(prompt=["a"]).prompts == ()
    several = completion_of(prompt=["a", [1, 2**32 - 1]])
    assert several.prompts == (PlainText("a"), ids)
    assert refusal(completion_of, prompt=["a"] * 9, n=128).param == "prompt"
    assert completion_of().max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "reason", "param"),
    [
        ("", "invalid_value", "prompt"),
        ([], "invalid_value", "prompt"),
        ([[]], "invalid_value", "prompt"),
        (None, "invalid_value", "prompt"),
        ({"a": 1}, "invalid_value", "prompt"),
        (["a", ""], "invalid_value", "prompt[1]"),
        (["a", 1], "invalid_value", "prompt[1]"),
        ([[1], [2, -1]], "invalid_token_id", "prompt[1][1]"),
        (["a"] * 257, "invalid_value", "prompt"),
        ([1, -1], "invalid_token_id", "prompt[1]"),
        ([1, 2.5], "invalid_token_id", "prompt[1]"),
        ([1, 2**63], "invalid_token_id", "prompt[1]"),
        ([1, "a"], "invalid_token_id", "prompt[1]"),
        ([1, True], "invalid_token_id", "prompt[1]"),
    ],
)
def test_bad_completion_prompts(prompt: object, reason: str, param: str) -> None:
    error = refusal(completion_of, prompt=prompt)
    assert (error.reason, error.param) == (reason, param)


def test_rules_for_tokens_reach_the_request_of_every_endpoint() -> None:
    fields = {
        "min_p": 0.1, "presence_penalty": -2, "frequency_penalty": 0.5, "repetition_penalty": 1.2,
        "logit_bias": {"7": -100, "50256": 1.5}, "min_tokens": 3,
    }  # fmt: skip
    rules = TokenRules(
        min_p=0.1, presence_penalty=-2, frequency_penalty=0.5, repetition_penalty=1.2,
        logit_bias=((7, -100.0), (50256, 1.5)), min_tokens=3,
    )  # fmt: skip
    for parse in (chat_of, completion_of, response_of):
        assert parse(**fields).rules == rules
        assert parse().rules == TokenRules()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"logit_bias": {"7": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_rules_beyond_their_limits_are_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(chat_of, **fields).param == param


def test_each_endpoint_asks_for_logprobs_in_its_own_way() -> None:
    assert chat_of(logprobs=False, top_logprobs=0).num_logprobs is None
    assert chat_of(logprobs=True).num_logprobs == 0
    assert chat_of(logprobs=True, top_logprobs=20).num_logprobs == 20
    assert completion_of().num_logprobs is None
    assert completion_of(logprobs=0).num_logprobs == 0
    assert completion_of(logprobs=5, echo=True).echo
    included = ["message.output_text.logprobs"]
    assert response_of(include=included, top_logprobs=3).num_logprobs == 3
    assert response_of(include=[]).num_logprobs is None
    assert refusal(completion_of, logprobs=21).param == "logprobs"
    assert refusal(response_of, top_logprobs=3).param == "top_logprobs"
    assert refusal(response_of, include=["message.output_text"]).param == "include[0]"


def test_only_an_echo_may_be_all_of_an_answer() -> None:
    assert completion_of(max_tokens=0, echo=True).max_tokens == 0
    assert refusal(completion_of, max_tokens=0).param == "max_tokens"
    assert refusal(chat_of, max_tokens=0, echo=True).param == "echo"


def test_text_behind_a_completion_is_refused() -> None:
    assert refusal(completion_of, suffix="x").param == "suffix"


def test_response_input_becomes_a_conversation() -> None:
    request = response_of(
        instructions="be brief",
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}
                ],
            },
            {"role": "user", "content": "c"},
        ],
    )
    assert turns(request) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert turns(response_of(input="x")) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("fields", "reason", "param"),
    [
        ({"store": 1}, "invalid_value", "store"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        (
            {"conversation": "c", "previous_response_id": "resp_1"},
            "invalid_value",
            "conversation",
        ),
        ({"truncation": "middle"}, "invalid_value", "truncation"),
        ({"reasoning": {"effort": "much"}}, "invalid_value", "reasoning.effort"),
        ({"include": ["all"]}, "unsupported_parameter", "include[0]"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": [3]}, "invalid_value", "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "unsupported_content", "input[0].type"),
        ({"input": [{"role": "user", "content": 3}]}, "invalid_value", "input[0].content"),
        ({"input": [{"role": "x", "content": "a"}]}, "invalid_value", "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "unsupported_content",
            "input[0].content[0]",
        ),
    ],
)
def test_response_refusals(fields: dict[str, Any], reason: str, param: str) -> None:
    error = refusal(response_of, **fields)
    assert (error.reason, error.param) == (reason, param)


def test_response_accepts_what_asks_for_nothing() -> None:
    request = response_of(
        store=False, tools=[], text={"format": {"type": "text"}}, include=[], truncation="disabled"
    )
    assert request.endpoint == "responses"


@pytest.mark.parametrize(
    "struct",
    [
        ChatFields,
        ChatMessage,
        CompletionFields,
        ResponseFields,
        StreamOptions,
        StructuredOutputs,
        TokenizeFields,
        DetokenizeFields,
    ],
)
def test_every_number_text_and_list_of_a_request_has_a_cap(struct: Any) -> None:
    # Checked by hand where they are used.
    unchecked = {
        "prompt", "input", "messages", "annotations", "audio", "function_call", "parsed",
        "provider_specific_fields", "tool_calls", "tool_call_id", "guided_json", "json",
        "chat_template_kwargs",
    }  # fmt: skip
    hints = typing.get_type_hints(struct, include_extras=True)
    for name, hint in hints.items():
        if name not in unchecked and not name.startswith("__"):
            assert _is_capped(hint), f"{struct.__name__}.{name} has no cap"


def _is_capped(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return True
    if typing.get_origin(hint) is typing.Annotated:
        meta = hint.__metadata__[0]
        return meta.max_length is not None or meta.le is not None or meta.lt is not None
    options = typing.get_args(hint)
    if options and typing.get_origin(hint) is not list:
        return all(_is_capped(option) for option in options)
    return hint in (bool, type(None)) or (
        isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    )
