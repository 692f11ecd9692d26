"""The forms of all answers, for the description of the API: nothing is built from them.

Tests read answers of each kind with them, so that each field of an answer is here.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class ErrorObject(Struct):
    message: str
    type: str
    param: str | None
    code: str


class Error(Struct):
    """Every refusal and failure."""

    error: ErrorObject


class PromptTokenDetails(Struct):
    cached_tokens: int


class OutputTokenDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: OutputTokenDetails


class LikelyToken(Struct):
    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprob(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None


class AnsweredFunction(Struct):
    name: str
    arguments: str


class AnsweredCall(Struct):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnswerMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnsweredCall] | UnsetType = UNSET


# Token id -> {logprob, rank, decoded_token}, for each place of the prompt but the first.
PromptLogprobs = list[dict[str, Any] | None]


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    error: ErrorObject | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class LegacyLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: str
    error: ErrorObject | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(Struct, tag_field="type", tag="message"):
    id: str
    status: str
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class OutputReasoning(Struct, tag_field="type", tag="reasoning"):
    id: str
    status: str
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: None


class OutputCall(Struct, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str


class ResponseError(Struct):
    code: str
    message: str


class IncompleteDetails(Struct):
    reason: str | None


class InputTokenDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class AnswerConversation(Struct):
    id: str


class AnswerReasoning(Struct):
    effort: str | None
    summary: str | None


class Response(Struct):
    """A response; from `background` on it repeats its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    usage: ResponseUsage | None
    temperature: float | None
    top_p: float | None
    service_tier: str
    background: bool
    conversation: AnswerConversation | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: AnswerReasoning
    safety_identifier: str | None
    store: bool
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    truncation: str
    user: str | UnsetType = UNSET


class MessageText(Struct, tag_field="type", tag="text"):
    text: str


class MessageThinking(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class MessageToolUse(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(Struct):
    thinking_tokens: int


class MessageUsage(Struct):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: str


class AnsweredMessage(Struct):
    """A message, as Anthropic has it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageText | MessageThinking | MessageToolUse]
    stop_reason: str
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(Struct):
    input_tokens: int


class MessageErrorObject(Struct):
    type: str
    message: str


class MessageError(Struct):
    """Every refusal and failure of messages."""

    type: Literal["error"]
    error: MessageErrorObject
    request_id: str


class InputTokens(Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Tokens(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokensText(Struct):
    prompt: str


class ModelCard(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | UnsetType = UNSET
    capabilities: dict[str, bool] | UnsetType = UNSET
    engines: list[str] | UnsetType = UNSET
    unsupported_parameters: list[str] | UnsetType = UNSET
    guarantees: dict[str, Literal["yes", "expected", "no"]] | UnsetType = UNSET
    tool_syntax: str | UnsetType | None = UNSET
    reasoning_syntax: str | UnsetType | None = UNSET


class ModelList(Struct):
    object: Literal["list"]
    data: list[ModelCard]


class CancelledRequest(Struct):
    id: str
    object: Literal["request"]
    status: Literal["cancelled", "cancelling"]


class Deleted(Struct):
    id: str
    object: str
    deleted: bool


class ItemList(Struct):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Item(Struct):
    """An item as it was given or answered; its other fields are those of its type."""

    id: str
    type: str
    status: str


class Conversation(Struct):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class Health(Struct):
    status: Literal["ok"]


class Readiness(Struct):
    status: Literal["ready", "degraded", "unready"]
    reasons: list[str]


class About(Struct):
    name: str
    about: str
    paths: list[str]
