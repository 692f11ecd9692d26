"""The endpoints of models: the path of each, the reader of its request, the form of its answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from baton.wire.failures import BatonError
from services.gateway.openai import chat, completions, responses
from services.gateway.openai.chat_answer import ChatAnswer
from services.gateway.openai.errors import OPENAI, Dialect
from services.gateway.openai.generation import (
    Delta,
    EndpointName,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.responses_answer import InputTokensAnswer, ResponsesAnswer
from services.gateway.openai.vllm import tokenize


class AnswerFormat(Protocol):
    """Turns one answer into one API's bytes: as a stream, or collected and then whole.

    What may be large comes in pieces, which belong together.
    """

    def opening(self) -> bytes:
        """The events before the first delta."""

    def deltas(self, batch: list[Delta]) -> bytes:
        """The events of new text, in order."""

    def closing(self, usage: Usage) -> list[bytes]:
        """The final events of a stream that ended well."""

    def failure(self, error: BatonError) -> list[bytes]:
        """The one error event of a stream that failed."""

    def collect(self, batch: list[Delta]) -> None:
        """Take in new text, in order, of a request that does not stream."""

    def whole(self, usage: Usage) -> Iterable[bytes]:
        """The body of a request that does not stream; it may be made as it is sent."""


# OpenTelemetry's names of what is done, where it has one.
_OPERATIONS: dict[EndpointName, str] = {
    "chat.completions": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `generates`: a model answers, and not the tokenizer alone."""

    name: EndpointName
    parse: Callable[[bytes], GenerationRequest]
    answer: Callable[[Identity, GenerationRequest], AnswerFormat]
    generates: bool = True
    dialect: Dialect = OPENAI

    @property
    def operation(self) -> str:
        """The name of what it does, in spans and metrics."""
        return _OPERATIONS.get(self.name, self.name)


# OpenAI's and vLLM's.
ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": Endpoint("chat.completions", chat.parse, ChatAnswer),
    "/v1/completions": Endpoint("completions", completions.parse, completions.CompletionAnswer),
    "/v1/responses": Endpoint("responses", responses.parse, ResponsesAnswer),
    "/v1/responses/input_tokens": Endpoint(
        "responses.input_tokens", responses.parse_to_count, InputTokensAnswer, generates=False
    ),
    "/tokenize": Endpoint("tokenize", tokenize.parse, tokenize.TokenizeAnswer, generates=False),
    "/detokenize": Endpoint(
        "detokenize", tokenize.parse_tokens, tokenize.DetokenizeAnswer, generates=False
    ),
}
