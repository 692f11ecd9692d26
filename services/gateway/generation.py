"""What a client asked for and what it gets, apart from any API's shape.

The three OpenAI endpoints translate into GenerationRequest and back from Delta and Summary; the
pipeline between them knows only these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EndpointName = Literal["chat.completions", "completions", "responses"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ChatMessages:
    """A conversation; `messages_json` is a JSON list of {role, content}, text only."""

    messages_json: bytes


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text that is encoded as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Token ids, u32 little-endian."""

    token_ids: bytes


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request. None means that the client left it to the server."""

    endpoint: EndpointName
    model: str
    prompt: ChatMessages | PlainText | PromptTokens
    stream: bool = False
    include_usage: bool = False
    num_choices: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_salt: str = ""
    # Fields that the answer repeats, by name (Responses).
    repeated: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one choice, in order. `finish_reason` is set on the choice's last delta only."""

    choice: int
    text: str
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What every part of one answer repeats."""

    request_id: str
    created_unix_s: int
    # The public name that the client asked for.
    model: str
    model_fp: str
    num_choices: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole request; `num_output_tokens` over all choices."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
