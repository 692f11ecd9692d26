"""A request with tools as its model needs it: the form of its answer, and its messages.

Chat templates that know tools show them to the model, and earlier calls and results. For the others
a system message does, and calls and results become text.
"""

from dataclasses import replace
from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai.generation import ChatMessages, GenerationRequest, Tools
from services.gateway.text.detokenize import TextModel
from services.gateway.tools.call_grammar import call_rules
from services.gateway.tools.call_syntax import GENERIC

_ABOUT_TOOLS = """\
You may call functions. Each line below describes one:
{functions}
To call a function, write its name and its arguments as a JSON object between tags:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
The result follows between <tool_response> and </tool_response>."""


def with_tools(
    request: GenerationRequest, prompt: ChatMessages, text_model: TextModel
) -> GenerationRequest:
    """The request with what its tools ask for. Raises InvalidRequest when the model's way to write
    calls is not known."""
    tools, syntax = prompt.tools, text_model.call_syntax
    if tools is not None:
        if syntax is None:
            message = "tools: this version cannot read the way in which this model calls functions"
            raise InvalidRequest(message, reason="unsupported_parameter", param="tools")
        # Calls that are required are the whole answer.
        form = None if tools.is_required else request.rules.structure
        if tools.is_enforced or form is not None:
            calls = call_rules(tools, syntax, text_model.mark_ids, has_form=form is not None)
            rules = replace(request.rules, structure=form, call_rules=calls)
            request = replace(request, rules=rules)
    if syntax is not None and syntax.id_begin and prompt.has_calls:
        request = replace(request, prompt=_with_ids(prompt, syntax.id_begin))
    if syntax is GENERIC:
        request = replace(request, prompt=_as_text(prompt, tools))
    return request


def _with_ids(prompt: ChatMessages, id_begin: str) -> ChatMessages:
    """The conversation with the ids that its model writes: its template shows calls by those."""
    turns = msgspec.json.decode(prompt.messages_json, type=list[dict[str, Any]])
    ids: dict[str, str] = {}
    num_calls = 0
    for turn in turns:
        for call in turn.get("tool_calls", ()):
            ids[call["id"]] = f"{id_begin}{call['function']['name']}:{num_calls}"
            call["id"] = ids[call["id"]]
            num_calls += 1
        if "tool_call_id" in turn:
            turn["tool_call_id"] = ids.get(turn["tool_call_id"], turn["tool_call_id"])
    return msgspec.structs.replace(prompt, messages_json=msgspec.json.encode(turns))


def _as_text(prompt: ChatMessages, tools: Tools | None) -> ChatMessages:
    """The conversation for a template that knows the roles system, user and assistant only."""
    messages = msgspec.json.decode(prompt.messages_json, type=list[dict[str, Any]])
    turns = [_turn(message) for message in messages]
    if tools is not None:
        described = msgspec.json.decode(tools.tools_json, type=list[dict[str, Any]])
        lines = "\n".join(msgspec.json.encode(each["function"]).decode() for each in described)
        about = _ABOUT_TOOLS.format(functions=lines)
        if turns[0]["role"] == "system":
            turns[0] = {**turns[0], "content": f"{turns[0]['content']}\n\n{about}"}
        else:
            turns.insert(0, {"role": "system", "content": about})
    return msgspec.structs.replace(prompt, messages_json=msgspec.json.encode(turns))


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "tool":
        text = f"<tool_response>\n{content}\n</tool_response>"
        return {"role": "user", "content": text}
    if "tool_calls" not in message:
        return message
    calls = [_written(call["function"]) for call in message["tool_calls"]]
    return {"role": "assistant", "content": "\n".join([content, *calls] if content else calls)}


def _written(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{msgspec.json.encode(call).decode()}\n</tool_call>"
