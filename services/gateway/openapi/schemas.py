"""The schemas of requests and answers, from the structs that requests are validated with.

What a struct says of a field (type, caps, default) is not said again. Here stand the shapes that
parsers check themselves, because one field may have several.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from services.gateway.anthropic.conversation import Message
from services.gateway.anthropic.message_tools import MessageTool
from services.gateway.anthropic.messages import MessageFields
from services.gateway.batches.lines import BATCH_ENDPOINTS
from services.gateway.http.batches import WINDOW, NewBatch
from services.gateway.http.conversations import MAX_ITEMS, NewConversation, NewItems
from services.gateway.openai import limits
from services.gateway.openai.chat import ROLES, ChatFields, ChatMessage
from services.gateway.openai.completions import CompletionFields
from services.gateway.openai.response_reasoning import ReasoningItem
from services.gateway.openai.response_tools import CallItem, ResultItem
from services.gateway.openai.responses import PART_KINDS, ResponseFields
from services.gateway.openai.tool_fields import MAX_TOOLS
from services.gateway.openai.vllm.tokenize import TokenizeFields
from services.gateway.openapi.answers import Error, MessageError
from services.gateway.openapi.batch_answers import FileForm
from services.gateway.openapi.operations import Operation
from services.gateway.vectors.embeddings import EmbeddingFields

Schema = dict[str, Any]
_REFERENCE = "#/components/schemas/{name}"
_NULL = {"type": "null"}
_ITEMS: dict[str, type[msgspec.Struct]] = {
    "function_call": CallItem,
    "function_call_output": ResultItem,
    "reasoning": ReasoningItem,
}
_ITEM_REFERENCE: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "item_reference"},
        "id": {"type": "string", "maxLength": 512},
    },
    "required": ["type", "id"],
    "additionalProperties": False,
}
# Parts of bodies that are read with the same rules as bodies.
_READ_ALONE: list[type[msgspec.Struct]] = [ChatMessage, Message, MessageTool, *_ITEMS.values()]


def schemas_of(operations: Iterable[Operation]) -> dict[str, Schema]:
    """All schemas by name."""
    operations = list(operations)
    bodies = {each.body: each.unsupported for each in operations if each.body is not None}
    answers = [each.answer for each in operations if each.answer is not bytes]
    structs = dict.fromkeys([*bodies, *answers])
    _, schemas = msgspec.json.schema_components(
        [*structs, *_READ_ALONE, Error, MessageError], ref_template=_REFERENCE
    )
    for body, unsupported in bodies.items():
        _add_harmless(schemas[body.__name__], unsupported or {})
    for (owner, field), shape in _shapes().items():
        if owner.__name__ in schemas:
            schemas[owner.__name__]["properties"][field] = shape
    if FileForm.__name__ in schemas:
        # A field of a form is never null.
        schemas[FileForm.__name__]["additionalProperties"] = False
    for part in _READ_ALONE:
        schemas[part.__name__]["additionalProperties"] = _NULL
    for kind, item in _ITEMS.items():
        schema = schemas[item.__name__]
        schema["properties"]["type"] = {"const": kind}
        schema["required"] = sorted({*schema["required"], "type"})
    return schemas


def reference_to(struct: type[Any]) -> Schema:
    """The schema of a struct, by its name."""
    return {"$ref": _REFERENCE.format(name=struct.__name__)}


def _add_harmless(schema: Schema, unsupported: Any) -> None:
    """Add the fields of absent features, with the values that ask for nothing. Null always does,
    in a field of any name."""
    for name, values in unsupported.items():
        schema["properties"].setdefault(name, {"enum": [*values, None]})
    schema["additionalProperties"] = _NULL


def _shapes() -> dict[tuple[type[msgspec.Struct], str], Schema]:
    """The shapes of fields that parsers check themselves, by struct and field."""
    text = {"type": "string", "minLength": 1}
    tokens = _schema_of(limits.PromptTokenIds)
    one = {"anyOf": [text, tokens]}
    prompts = {"type": "array", "items": one, "minItems": 1, "maxItems": limits.MAX_PROMPTS}
    messages = _list_of(reference_to(ChatMessage))
    item = {"anyOf": [_message_item(), *(reference_to(each) for each in _ITEMS.values())]}
    items = {"type": "array", "items": item, "maxItems": MAX_ITEMS}
    given = {"anyOf": [*item["anyOf"], _ITEM_REFERENCE]}
    return {
        (ChatMessage, "content"): _or_null(_text_of(("text",))),
        (ResultItem, "output"): _text_of(PART_KINDS),
        (ChatFields, "messages"): messages,
        (MessageFields, "messages"): _list_of(reference_to(Message)),
        (MessageFields, "tools"): _or_null(
            {"type": "array", "items": reference_to(MessageTool), "maxItems": MAX_TOOLS}
        ),
        (TokenizeFields, "messages"): _or_null(messages),
        (CompletionFields, "prompt"): {"anyOf": [text, tokens, prompts]},
        (EmbeddingFields, "input"): {
            "anyOf": [text, tokens, prompts | {"maxItems": limits.MAX_INPUTS}]
        },
        (ResponseFields, "input"): {"anyOf": [text, _list_of(given)]},
        (NewConversation, "items"): _or_null(items),
        (NewItems, "items"): items,
        (NewBatch, "endpoint"): {"enum": list(BATCH_ENDPOINTS)},
        (NewBatch, "completion_window"): {"const": WINDOW},
        (FileForm, "file"): {
            "type": "string",
            "contentMediaType": "application/octet-stream",
            "minLength": 1,
        },
    }


def _message_item() -> Schema:
    """A message of a response's input."""
    short = {"type": ["string", "null"], "maxLength": 512}
    return {
        "type": "object",
        "properties": {
            "type": {"const": "message"},
            "role": {"enum": list(ROLES)},
            "content": _text_of(PART_KINDS),
            **dict.fromkeys(("id", "status", "phase"), short),
        },
        "required": ["role", "content"],
        "additionalProperties": False,
    }


def _text_of(kinds: tuple[str, ...]) -> Schema:
    """Text, or parts of these kinds."""
    part = {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, "text": {"type": "string"}},
        "required": ["type", "text"],
        "additionalProperties": {"enum": [None, []]},
    }
    return {"anyOf": [_schema_of(limits.Text), {**_schema_of(limits.Parts), "items": part}]}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": limits.MAX_MESSAGES}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL], "default": None}


def _schema_of(kind: Any) -> Schema:
    return msgspec.json.schema(kind)
