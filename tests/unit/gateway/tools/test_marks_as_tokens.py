"""Marks that are tokens of their own are so in the forms of answers, special or not.

The library that enforces a form takes every added token in angle brackets for a special one, which
no text can match.
"""

import json

import llguidance
import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.gateway.openai.generation import Function, Tools
from services.gateway.reasoning.answer_frame import answer_frame
from services.gateway.reasoning.marked_reasoning import Place
from services.gateway.text.detokenize import TextModel, load_text_model
from services.gateway.tools.call_grammar import call_rules

SCHEMA = (
    '{"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'
)
SPECIAL = ["<eos>", "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "<|call|>"]
SPECIAL += ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
PLAIN += ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
FORM = {"name": "form", "lark_grammar": 'start: "yes" | "no"'}
THOUGHT = {
    "think": "<think>\nHm.\n</think>\n\n",
    "mistral": "[THINK]Hm.[/THINK]",
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
}
CALLS = {
    "hermes": ("think", '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'),
    "mistral_named": ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "b"}'),
    "qwen3_coder": (
        "think",
        "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm45": (
        "think",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
    ),
    "harmony": (
        "harmony",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "b"}',
    ),
}


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    return made


TOKENIZER = tokenizer()
LIBRARY = llguidance.LLTokenizer(TOKENIZER.to_str(), eos_token=[TOKENIZER.token_to_id("<eos>")])


def model_of(tools: str, reasoning: str) -> TextModel:
    description = msgspec.json.encode({"tool_syntax": tools, "reasoning_syntax": reasoning})
    files = {"tokenizer.json": TOKENIZER.to_str().encode(), "detokenizer.json": description}
    return load_text_model(msgspec.msgpack.encode(files))


def accepts(frame: str, text: str) -> bool:
    """The tokens of the text follow the frame, and may end there."""
    grammars = [{"lark_grammar": frame}, *([FORM] if "@form" in frame else [])]
    matcher = llguidance.LLMatcher(LIBRARY, json.dumps({"grammars": grammars}))
    assert not matcher.get_error()
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", CALLS)
def test_calls_and_reasoning_are_admitted_token_by_token(name: str) -> None:
    reasoning, call = CALLS[name]
    model = model_of(name, reasoning)
    assert model.call_syntax is not None
    for is_required in (True, False):
        tools = Tools(b"", (Function("f", SCHEMA, is_strict=True),), is_required=is_required)
        rules = call_rules(tools, model.call_syntax, model.mark_ids)
        syntax, ids = model.reasoning_syntax, model.mark_ids
        frame = answer_frame(rules, syntax, Place.EITHER, ids, has_form=False)
        for text in (call, THOUGHT[reasoning] + call):
            assert accepts(frame, text), text
            wrong = text
            for right, changed in (('"a"', '"c"'), ("=a>", "=c>"), ("key>a<", "key>c<")):
                wrong = wrong.replace(right, changed)
            assert not accepts(frame, wrong), wrong


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
def test_a_text_before_a_tag_that_is_a_token_follows_its_schema(name: str) -> None:
    reasoning, call = CALLS[name]
    model, schema = model_of(name, reasoning), SCHEMA.replace("string", 'string", "pattern": "^b')
    assert model.call_syntax is not None
    tools = Tools(b"", (Function("f", schema),), is_required=True)
    rules = call_rules(tools, model.call_syntax, model.mark_ids)
    frame = answer_frame(rules, None, Place.ANSWER, model.mark_ids, has_form=False)
    assert accepts(frame, call)
    assert not accepts(frame, call.replace("b\n</par", "c\n</par").replace(">b<", ">c<"))


@pytest.mark.parametrize("name", THOUGHT)
def test_a_form_begins_behind_the_tokens_of_reasoning(name: str) -> None:
    model = model_of("generic", name)
    answer_begin = "<|channel|>final<|message|>" if name == "harmony" else ""
    frame = answer_frame("", model.reasoning_syntax, Place.EITHER, model.mark_ids, has_form=True)
    assert accepts(frame, f"{THOUGHT[name]}{answer_begin}yes")
    assert accepts(frame, f"{answer_begin}no")
    assert not accepts(frame, f"{THOUGHT[name]}{answer_begin}maybe")
