"""Random conversations as clients send them: text, code, reasoning, tools, calls and results."""

import random
from typing import Any

from baton.testing.tokenizer_folder import CONTROL_TOKENS

Conversation = dict[str, Any]

_WORDS = (
    "the", "router", "picks", "two", "workers;", "naïve", "café", "日本語", "テキスト", "😀",
    "👩‍👩‍👧", "x<y", "a > b", "{'k': 1}", "<div>", "</div>", "| pipe |", "[1]", "\\n",
    '"quoted"', "it's", "I'm", "1234567", "3.14", "\t", "\n", "\n\n", "  ", "ﬁne", "Ａ",
    "e\u0301", "—", "&lt;", "http://x.y/z?a=b&c=d", "C:\\dir", "<", ">", "<|", "|>", "</", "[",
    "]", "<s", "s>", "INST", "im_start", "%s {0} {{ x }} {% if %}",
)  # fmt: skip
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"city": {"type": "string", "description": "a <b> & 'c'"}},
     "required": ["city"]},
    {"type": "object", "properties": {
        "unit": {"type": "string", "enum": ["°C", "°F"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
    }},
    {"type": "object", "properties": {}},
)  # fmt: skip


def random_text(source: random.Random, max_words: int = 20) -> str:
    """Words and odd characters; may be empty, never a control token's text."""
    words = source.choices(_WORDS, k=source.randint(0, max_words))
    text = "".join(word + source.choice((" ", " ", " ", "")) for word in words)
    while any(spelled in text for spelled in CONTROL_TOKENS):
        for spelled in CONTROL_TOKENS:
            text = text.replace(spelled, "")
    return text


def random_conversation(source: random.Random) -> Conversation:
    """A dict of "messages", "tools" (or None), "add_generation_prompt" and "template_kwargs"."""
    uses_tools = source.random() < 0.4
    messages: list[dict[str, Any]] = []
    if source.random() < 0.5:
        messages.append({"role": "system", "content": random_text(source)})
    for turn in range(source.randint(1, 4)):
        if turn:
            messages += _assistant_turn(source, uses_tools)
        messages.append({"role": "user", "content": _user_content(source)})
    if source.random() < 0.1:
        # Templates that insist on alternation refuse this.
        messages.append({"role": "user", "content": random_text(source)})
    return {
        "messages": messages,
        "tools": _tools(source) if uses_tools else None,
        "add_generation_prompt": source.random() < 0.8,
        "template_kwargs": {"enable_thinking": False} if source.random() < 0.3 else {},
    }


def _user_content(source: random.Random) -> Any:
    if source.random() < 0.85:
        return random_text(source)
    return [{"type": "text", "text": random_text(source, 8)} for _ in range(source.randint(1, 3))]


def _assistant_turn(source: random.Random, uses_tools: bool) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": random_text(source)}
    if source.random() < 0.3:
        field = source.choice(("reasoning_content", "reasoning", "thinking"))
        message[field] = random_text(source, 8)
    if not uses_tools or source.random() < 0.5:
        return [message]
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {
            "name": "weather", "arguments": {"city": random_text(source, 3), "n": i, "f": 1.5}}}
        for i in range(source.randint(1, 2))
    ]  # fmt: skip
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": random_text(source, 6)}
        for call in calls
    ]
    return [{**message, "content": source.choice((None, "")), "tool_calls": calls}, *results,
            {"role": "assistant", "content": random_text(source)}]  # fmt: skip


def _tools(source: random.Random) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {
            "name": f"tool_{i}", "description": random_text(source, 6),
            "parameters": source.choice(_SCHEMAS)}}
        for i in range(source.randint(1, 3))
    ]  # fmt: skip
