"""The items of a stored conversation: messages, calls and results, each with a name of its own."""

from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai.responses import prompt_of

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}


def named_items(input_json: bytes, name: str) -> list[dict[str, Any]]:
    """The items of an input that was accepted, in the form in which they are listed. `name` makes
    the names of those that have none."""
    given = msgspec.json.decode(input_json)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [_named(item, f"{name}_{index}") for index, item in enumerate(items)]


def output_items(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a response's output as an input has them: without logprobs, and without those
    that no input may have, such as a call whose arguments broke off."""
    return [item for item in map(_without_logprobs, response["output"]) if _may_be_input(item)]


def _may_be_input(item: dict[str, Any]) -> bool:
    try:
        prompt_of([item], "", None)
    except InvalidRequest:
        return False
    return True


def _named(item: dict[str, Any], name: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    named = {
        **item,
        "id": item.get("id") or f"{_PREFIXES.get(kind, kind)}_{name}",
        "type": kind,
        "status": item.get("status") or "completed",
    }
    if kind == "message" and isinstance(item["content"], str):
        named["content"] = [_part(item["role"], item["content"])]
    return named


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}
