"""/v1/messages, the request: Anthropic's fields as a conversation, with tools."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from baton.wire.failures import InvalidRequest
from services.gateway.anthropic import conversation, message_tools
from services.gateway.openai import limits, structured
from services.gateway.openai.chat import conversation_of
from services.gateway.openai.decoding import decode_object, to_struct
from services.gateway.openai.generation import ChatMessages, GenerationRequest, TokenRules
from services.gateway.openai.shared_fields import template_kwargs_of

# Fields of absent features, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (
        {},
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
}


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """The thoughts that the client asks for. The budget is accepted: `max_tokens` is the limit."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: limits.MaxTokens | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessageMetadata(msgspec.Struct, forbid_unknown_fields=True):
    user_id: limits.UserId | None = None


class MessageFields(msgspec.Struct, kw_only=True):
    """The supported fields of a request for a message, or for the number of its tokens."""

    model: limits.ModelName
    messages: list[dict[str, Any]]
    max_tokens: limits.MaxTokens | None = None
    system: conversation.Content | None = None
    stream: bool | None = None
    temperature: limits.Temperature | None = None
    top_p: limits.TopP | None = None
    top_k: limits.TopK | None = None
    stop_sequences: (
        Annotated[list[limits.StopString], Meta(max_length=limits.MAX_STOP_STRINGS)] | None
    ) = None
    tools: message_tools.ToolList | None = None
    tool_choice: message_tools.ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Accepted, without effect.
    metadata: MessageMetadata | None = None
    cache_control: dict[str, Any] | None = None


def parse(body: bytes) -> GenerationRequest:
    """The request for a message in a body. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), MessageFields, UNSUPPORTED)
    if fields.max_tokens is None:
        raise InvalidRequest("max_tokens: required", param="max_tokens")
    return _request_of(fields)


def parse_to_count(body: bytes) -> GenerationRequest:
    """The request for the number of a prompt's tokens. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), MessageFields, UNSUPPORTED)
    return replace(_request_of(fields), endpoint="messages.count_tokens", stream=False)


def _request_of(fields: MessageFields) -> GenerationRequest:
    stop = tuple(fields.stop_sequences or ())
    thinking = fields.thinking or Thinking("disabled")
    return GenerationRequest(
        endpoint="messages",
        model=fields.model,
        prompt=_prompt(fields, thinks=thinking.type != "disabled"),
        stream=bool(fields.stream),
        max_tokens=fields.max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        rules=_rules(fields),
        stop=stop,
        # The answer names the one that ended it, and leaves it out of its text.
        includes_stop=bool(stop),
        shows_reasoning=thinking.type != "disabled" and thinking.display != "omitted",
    )


def _prompt(fields: MessageFields, *, thinks: bool) -> ChatMessages:
    turns = conversation.conversation(fields.system, fields.messages)
    functions = message_tools.tools_of(fields.tools, fields.tool_choice)
    has_calls = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    effort = (fields.output_config or OutputConfig()).effort
    wanted = {"enable_thinking": True, "thinking": True} if thinks else template_kwargs_of("none")
    return conversation_of(
        ChatMessages(msgspec.json.encode(turns), functions, has_calls),
        {**wanted, **template_kwargs_of(effort)},
        None,
        continues_final=conversation.continues_final(turns),
    )


def _rules(fields: MessageFields) -> TokenRules:
    structure, format = None, (fields.output_config or OutputConfig()).format
    if format is not None:
        structure = structured.of_schema(format.schema, "output_config.format.schema")
    return TokenRules(top_k=max(fields.top_k or 0, 0), structure=structure)
