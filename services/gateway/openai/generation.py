"""The request of a client and the parts of its answer, independent of any API's shape.

The endpoints of all APIs translate into GenerationRequest and back from Delta and Usage; the
pipeline between them knows only these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

EndpointName = Literal[
    "chat.completions",
    "completions",
    "responses",
    "responses.input_tokens",
    "messages",
    "messages.count_tokens",
    "tokenize",
    "detokenize",
    "embeddings",
    "rerank",
    "score",
]


class FinishReason(StrEnum):
    """The reason for which a choice ended well, as clients read it."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


class Function(NamedTuple):
    """A function that the model may call. `parameters_json`: the schema of its arguments."""

    name: str
    parameters_json: str
    is_strict: bool = False


class Tools(msgspec.Struct, frozen=True):
    """The functions of a conversation, and how the model may call them.

    `tools_json`: OpenAI's list, as chat templates read it. `functions`: those that may be called.
    `is_required`: the answer is one call or more. `is_named`: it is a call of the one function.
    """

    tools_json: bytes
    functions: tuple[Function, ...]
    is_required: bool = False
    is_named: bool = False
    is_parallel: bool = True

    @property
    def is_enforced(self) -> bool:
        """True when the answer must have a form: some calls, or arguments by a strict schema."""
        return self.is_required or any(function.is_strict for function in self.functions)


class ChatMessages(msgspec.Struct, frozen=True, tag=True):
    """A conversation; `messages_json` is a JSON list of {role, content}, text only. Arguments of
    earlier calls are JSON objects in it, as chat templates read them."""

    messages_json: bytes
    tools: Tools | None = None
    # It may have calls and results, as well as tools.
    has_calls: bool = False
    # A JSON object: variables of the chat template.
    template_kwargs_json: bytes = b""
    # The answer is a new message, or it goes on with the last one.
    adds_generation_prompt: bool = True
    continues_final: bool = False


class PlainText(msgspec.Struct, frozen=True, tag=True):
    """Text that is encoded as it stands."""

    text: str


class PromptTokens(msgspec.Struct, frozen=True, tag=True):
    """Token ids, u32 little-endian."""

    token_ids: bytes


class Structure(NamedTuple):
    """The form that an answer must have: `text` or `choices` state it, as its kind needs."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "ebnf"]
    text: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules of sampling besides temperature and top_p. The defaults change nothing.

    `logit_bias`: (token id, the number that is added to its logit).
    """

    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    structure: Structure | None = None
    # Lark: the rule `answer`, and in it `plain` for an answer that calls nothing.
    call_rules: str = ""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """A search with `num_choices` beams, all of whose results are choices. `early_stopping` as
    transformers has it."""

    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class Extras:
    """The details of tokens that an answer tells beside its text, as vLLM has them. The defaults
    tell none."""

    # The ids of the tokens of prompt and answer.
    token_ids: bool = False
    # Their names in the vocabulary.
    token_names: bool = False
    # Logprobs of each prompt token, and of so many likeliest ones besides.
    num_prompt_logprobs: int | None = None
    # Logprobs name tokens by their ids and not by their text.
    names_by_id: bool = False
    # Each chunk of a stream has the usage so far.
    running_usage: bool = False
    # Any of these is of the prompt; any needs the ids of each delta's tokens.
    of_prompt: bool = False
    counts_tokens: bool = False


class BestOf(NamedTuple):
    """Of the choices of each prompt only so many are told: the ones whose tokens are likeliest.
    `shows_logprobs`: the client wants the logprobs as well."""

    num_told: int
    shows_logprobs: bool


class VectorForm(NamedTuple):
    """The form of a vector that is wanted instead of text. `length`: None keeps all of it.
    `is_score`: it is the one number of a reranker."""

    is_base64: bool = False
    length: int | None = None
    is_score: bool = False


class Thread(msgspec.Struct, frozen=True):
    """The surroundings of a response: what stands before its input, and how it is kept.

    `input_json`: the input as the client wrote it. `tenant` and `earlier_json`, a JSON list of the
    items before the input, are known once the request is resolved (stored/threads.py).
    """

    input_json: bytes
    instructions: str = ""
    previous_response_id: str = ""
    conversation_id: str = ""
    is_stored: bool = True
    is_background: bool = False
    # The oldest items are left out when the prompt is too long.
    truncates: bool = False
    # Items of the input name stored ones.
    has_references: bool = False
    tenant: str = ""
    earlier_json: bytes = b"[]"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request, with a field for each parameter that the APIs have in common. None: the
    client left the choice to the server."""

    endpoint: EndpointName
    model: str
    prompt: ChatMessages | PlainText | PromptTokens
    # All prompts of a list of several, each of which is served as a request of its own.
    prompts: tuple[ChatMessages | PlainText | PromptTokens, ...] = ()
    stream: bool = False
    include_usage: bool = False
    num_choices: int = 1
    # None: all choices are told.
    best_of: BestOf | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    rules: TokenRules = TokenRules()
    # Set: no sampling; the answer comes as a whole when the search ends.
    search: BeamSearch | None = None
    stop: tuple[str, ...] = ()
    # The stop string that ended an answer is part of it.
    includes_stop: bool = False
    # Special tokens have text, but for the one that ends the answer.
    shows_special_tokens: bool = False
    # Logprobs of each token, and of so many likeliest ones besides; None: not wanted.
    num_logprobs: int | None = None
    # The answer starts with the prompt; with logprobs, also those of the prompt.
    echo: bool = False
    # Logprobs of each prompt token, and of so many likeliest ones besides; None: not wanted.
    num_prompt_logprobs: int | None = None
    extras: Extras = Extras()
    # Requests of this name share much of their prompts.
    session: str = ""
    # By so much later than the key's other requests; below 0 is no sooner than they are.
    lateness: int = 0
    cache_salt: str = ""
    # Whether the tokenizer adds its special tokens (BOS); None: to text, and not to conversations.
    adds_special_tokens: bool | None = None
    # The model may write reasoning; it is sent, too.
    may_reason: bool = False
    shows_reasoning: bool = True
    # Fields that the answer repeats, or is made by, by name (Responses, rerank).
    repeated: Mapping[str, Any] = field(default_factory=dict)
    # Of responses only.
    thread: Thread | None = None
    # Set: the answer is the vector of each prompt, and no text.
    vector: VectorForm | None = None


class Likelihood(NamedTuple):
    """A token that could have been sampled."""

    token: bytes
    logprob: float


class TokenLogprob(NamedTuple):
    """A token of the prompt or the answer, as bytes: it may be part of a character.

    `text_offset`: the start of its text in the choice's text. `logprob` is None for the first token
    of a prompt. `top`: the likeliest tokens at its position, the best first.
    """

    text_offset: int
    token: bytes
    logprob: float | None
    top: tuple[Likelihood, ...]


class RankedLogprob(msgspec.Struct, frozen=True):
    """A token that could have stood in a prompt; the likeliest one has `rank` 1."""

    logprob: float
    rank: int
    decoded_token: str


class TokenDetails(NamedTuple):
    """Details of the tokens of a delta, for the few who ask. `is_prompt`: they are the prompt's.

    `prompt_logprobs`: by token id, those of the next prompt tokens; None for the first one.
    """

    is_prompt: bool = False
    token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[dict[int, RankedLogprob] | None, ...] = ()
    token_names: tuple[str, ...] = ()
    # Instead of tokens: float32, little-endian.
    vector: bytes = b""


class CallDelta(NamedTuple):
    """New text of the arguments of a choice's call with this number; the first delta of a call
    names it."""

    number: int
    arguments: str
    call_id: str = ""
    name: str = ""


@dataclass(slots=True)
class Delta:
    """New text of one choice, in order, behind its reasoning. `finish_reason` is set on the
    choice's last delta only. There is one for each token: not frozen, which makes five times as
    fast.

    `logprobs`: those of the tokens whose text begins here, where the request asked for them.
    `spent_budget` names the budget that ended the choice, if one did.
    """

    choice: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    spent_budget: str = ""
    calls: tuple[CallDelta, ...] = ()
    details: TokenDetails | None = None
    reasoning: str = ""

    @property
    def is_text(self) -> bool:
        """True when there is nothing but text."""
        return self.finish_reason is None and not (
            self.reasoning or self.calls or self.logprobs or self.details
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that every part of one answer repeats."""

    request_id: str
    created_unix_s: int
    # The public name that the client asked for.
    model: str
    system_fingerprint: str
    num_choices: int
    # Of the first prompt, where there is a list of them.
    num_prompt_tokens: int = 0
    max_model_len: int = 0
    # The counts at any time, as an answer that fails tells them.
    usage_at: "Callable[[int], Usage] | None" = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The token counts of a whole request, and the time of its end; those of the output over all
    choices."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    # Part of the output.
    num_reasoning_tokens: int = 0
    ended_unix_s: int = 0
