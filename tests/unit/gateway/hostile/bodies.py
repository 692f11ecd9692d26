"""Request bodies that are nearly right: valid ones with a few places made hostile.

A body is JSON text, as some clients write it: with numbers that no float holds, lone surrogates,
names that are given twice, or cut off.
"""

import copy
import json
from random import Random
from typing import Any

_INFINITY = "1e999"
_TEXTS = (
    "", "a", "hi there", "\x00", "\ud800", "\udfff\ud800", "\u2028", "\U0001f600" * 40, "x" * 600,
    "data: [DONE]\n\n", "<tool_call>", "{{ 7 * 7 }}", " - at `$.messages[9].z`", "`$`", "$.[0]",
    "__proto__", "index", "resp_req_1:events", "conv_1", "resp_", "demo", "function", "assistant",
    "tool", "{}", "[" * 200, '{"a":1e999}', "0", "-1", "4294967296", "auto", "never",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 16, 128, 129, 257, 1024, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64,
    -(2**63), -(2**63) - 1, 10**40, 10**400, 0.0, -0.0, 0.5, 1.0, 2.0, 1.5, -2.0, 5e-324, 1e16,
    1e308, float("inf"), float("-inf"),
)  # fmt: skip
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_PLAIN = {
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 7,
    "stop": ["x", "yz"],
    "presence_penalty": 1,
    "frequency_penalty": -1.5,
    "logit_bias": {"97": 5},
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "ignore_eos": True,
    "stop_token_ids": [99],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "prompt_cache_key": "k",
    "cache_salt": "s",
    "user": "u",
    "safety_identifier": "i",
    "metadata": {"a": "b"},
    "service_tier": "auto",
}
_SHARED = {
    **_PLAIN,
    "n": 2,
    "add_special_tokens": True,
    "priority": 1,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
    "structured_outputs": {"choice": ["a", "b"]},
    "guided_json": _SCHEMA,
    "guided_regex": "[ab]",
    "guided_choice": ["a"],
    "guided_grammar": 'start: "a"',
    "use_beam_search": True,
    "length_penalty": 0.5,
    "early_stopping": "never",
}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA, "strict": True}
_CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
_MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "me"},
    {"role": "assistant", "content": None, "tool_calls": _CALLS, "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
]
_ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hm"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
    {
        "type": "message",
        "role": "assistant",
        "content": "two",
        "id": "msg_1",
        "status": "completed",
    },
]
_BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "msg_1"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "2", "is_error": True},
            {"type": "text", "text": "and?", "citations": None},
        ],
    },
]
_ASKED = {
    "system": [{"type": "text", "text": "be brief"}],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA, "strict": True}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": _SCHEMA}},
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": []},
}
# Path -> the fields that its body must have, and others that it may have.
_RANKED = {"model": "demo", "query": "a", "documents": ["b", {"text": "c"}]}
_RANKED_TOO = {"top_n": 1, "return_documents": True, "priority": 1, "cache_salt": "s", "user": "u"}
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": (
        {"model": "demo", "messages": _MESSAGES},
        {
            **_SHARED,
            "max_tokens": 3,
            "max_completion_tokens": 3,
            "logprobs": True,
            "top_logprobs": 2,
            "tools": [{"type": "function", "function": _FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": False,
            "continue_final_message": True,
            "include_reasoning": False,
            "reasoning_effort": "low",
            "verbosity": "low",
            "stream": True,
        },
    ),
    "/v1/completions": (
        {"model": "demo", "prompt": ["hi", [104, 105]]},
        {**_SHARED, "max_tokens": 3, "echo": True, "logprobs": 2, "best_of": 3, "stream": True},
    ),
    "/v1/responses": (
        {"model": "demo", "input": _ITEMS},
        {
            **_PLAIN,
            "instructions": "be brief",
            "max_output_tokens": 3,
            "include": ["message.output_text.logprobs"],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
            "top_logprobs": 2,
            "tools": [{"type": "function", **_FUNCTION}],
            "tool_choice": {"type": "function", "name": "f"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "include_reasoning": True,
            "max_tool_calls": 2,
            "store": True,
            "previous_response_id": "resp_1",
            "conversation": {"id": "conv_1"},
            "background": True,
            "truncation": "auto",
            "stream": True,
        },
    ),
    "/v1/responses/input_tokens": ({"model": "demo", "input": _ITEMS}, {"instructions": "a"}),
    "/tokenize": (
        {"model": "demo", "messages": _MESSAGES},
        {"prompt": "hi", "add_special_tokens": True, "return_token_strs": True},
    ),
    "/v1/rerank": (_RANKED, _RANKED_TOO),
    "/v2/rerank": (_RANKED, _RANKED_TOO),
    "/v1/score": (
        {"model": "demo", "text_1": "a", "text_2": ["b", "c"]},
        {"priority": 1, "cache_salt": "s", "user": "u"},
    ),
    "/v1/embeddings": (
        {"model": "demo", "input": ["a", [104, 105]]},
        {
            "encoding_format": "base64",
            "dimensions": 2,
            "add_special_tokens": True,
            "priority": 1,
            "cache_salt": "s",
            "user": "u",
        },
    ),
    "/detokenize": ({"model": "demo", "tokens": [104, 105]}, {}),
    "/v1/messages": (
        {"model": "demo", "max_tokens": 3, "messages": _BLOCKS},
        {
            **_ASKED,
            "temperature": 0.5,
            "top_p": 0.5,
            "top_k": 3,
            "stop_sequences": ["x", "yz"],
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "stream": True,
        },
    ),
    "/v1/messages/count_tokens": ({"model": "demo", "messages": _BLOCKS}, _ASKED),
    "/v1/conversations": ({}, {"items": _ITEMS, "metadata": {"a": "b"}}),
    "/v1/batches": (
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        {"metadata": {"a": "b"}},
    ),
}

_PATHS = sorted(EXAMPLES)
# The first and last of some characters: of one byte in UTF-8 to four, and none that UTF-8 has not.
_CHARACTERS = ((0, 0x7F), (0x20, 0x7E), (0x80, 0x7FF), (0x800, 0xD7FF), (0x10000, 0x10FFFF))
_MAX_DEPTH = 3


def text(random: Random, max_size: int) -> str:
    """Up to so many characters."""
    ranges = [random.choice(_CHARACTERS) for _ in range(random.randint(0, max_size))]
    return "".join(chr(random.randint(first, last)) for first, last in ranges)


def _leaf(random: Random) -> Any:
    kind = random.randint(0, 4)
    if kind == 0:
        return random.choice((None, True, False))
    if kind == 1:
        return text(random, 9)
    return random.choice(_NUMBERS if kind == 2 else _TEXTS)


def _value(random: Random, depth: int = 0) -> Any:
    """A leaf, or a list or an object of few."""
    kind = random.randint(0, 5) if depth < _MAX_DEPTH else 0
    if kind < 4:
        return _leaf(random)
    size = random.randint(0, 3)
    if kind == 4:
        return [_value(random, depth + 1) for _ in range(size)]
    return {_name(random): _value(random, depth + 1) for _ in range(size)}


def _name(random: Random) -> str:
    return random.choice(_TEXTS) if random.randint(0, 1) else text(random, 5)


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every container in a tree with each of its keys."""
    keys = list(node) if isinstance(node, dict) else range(len(node))
    found = [(node, key) for key in keys]
    for key in keys:
        if isinstance(node[key], dict | list):
            found += _places(node[key])
    return found


def _change(random: Random, root: dict[str, Any]) -> None:
    """Make one place of the body hostile."""
    places = _places(root)
    if not places:
        root[random.choice(_TEXTS)] = _value(random)
        return
    node, key = random.choice(places)
    kind = random.choice(("replace", "replace", "replace", "remove", "repeat", "add"))
    if kind == "replace":
        node[key] = _value(random)
    elif kind == "remove":
        del node[key]
    elif isinstance(node, list):
        node.append(copy.deepcopy(node[key]) if kind == "repeat" else _value(random))
    else:
        node[random.choice(_TEXTS)] = _value(random)


def body(random: Random) -> tuple[str, bytes]:
    """A path and a body for it."""
    path = random.choice(_PATHS)
    needed, optional = EXAMPLES[path]
    names = [random.choice(list(optional)) for _ in range(random.randint(0, 5) if optional else 0)]
    fields = copy.deepcopy(needed | {name: optional[name] for name in names})
    for _ in range(random.randint(0, 3)):
        _change(random, fields)
    written = json.dumps(fields, ensure_ascii=random.randint(0, 1) == 1)
    return path, spoilt(
        random, written.replace("Infinity", _INFINITY).encode("utf-8", "surrogatepass")
    )


def spoilt(random: Random, given: bytes) -> bytes:
    """The same bytes; now and then fewer of them, or with others between."""
    kind = random.choice(("as it is",) * 12 + ("cut", "insert", "twice", "noise"))
    place = random.randint(0, len(given))
    if kind == "cut":
        return given[:place]
    if kind == "insert":
        return given[:place] + random.randbytes(random.randint(1, 4)) + given[place:]
    if kind == "twice":
        return b'{"model":"demo",' + given[1:]
    if kind == "noise":
        return random.randbytes(random.randint(0, 40))
    return given
