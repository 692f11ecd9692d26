"""The paths of the API, each with the struct of its request and the form of its answer."""

from dataclasses import dataclass

import msgspec

from services.gateway.anthropic import messages
from services.gateway.endpoints import ENDPOINTS
from services.gateway.http import batches, conversations
from services.gateway.http.files import JSON_LINES
from services.gateway.http.request import JSON
from services.gateway.openai import chat, completions
from services.gateway.openai import responses as response_requests
from services.gateway.openai.decoding import Unsupported
from services.gateway.openai.errors import OPENAI, Dialect
from services.gateway.openai.vllm import tokenize
from services.gateway.openapi import answers, batch_answers, vector_answers
from services.gateway.vectors import embeddings, rerank


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path. `unsupported`: fields that are taken with a value that asks for nothing.
    `statuses`: those of its answer. `answer`: bytes for a file's. There is a field for each thing
    that a reader may see."""

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | type[bytes]
    body: type[msgspec.Struct] | None = None
    unsupported: Unsupported | None = None
    query: tuple[str, ...] = ()
    streams: bool = False
    is_open: bool = False
    statuses: tuple[int, ...] = (200,)

    @property
    def takes_headers(self) -> bool:
        """True where the headers of generating requests are read."""
        return self.path in ENDPOINTS

    @property
    def media_type(self) -> str:
        """Of its answer."""
        return JSON_LINES if self.answer is bytes else JSON

    @property
    def is_form(self) -> bool:
        """True where the body is a form with a file."""
        return self.body is batch_answers.FileForm

    @property
    def dialect(self) -> Dialect:
        """The form of its errors."""
        return ENDPOINTS[self.path].dialect if self.path in ENDPOINTS else OPENAI


OPERATIONS = (
    Operation(
        "post", "/v1/chat/completions", "Answer a conversation", answers.ChatCompletion,
        chat.ChatFields, chat.UNSUPPORTED, streams=True,
    ),
    Operation(
        "post", "/v1/completions", "Continue prompts", answers.Completion,
        completions.CompletionFields, completions.UNSUPPORTED, streams=True,
    ),
    Operation(
        "post", "/v1/responses", "Make a response", answers.Response,
        response_requests.ResponseFields, response_requests.UNSUPPORTED, streams=True,
    ),
    Operation(
        "post", "/v1/responses/input_tokens", "Count the tokens of a response's prompt",
        answers.InputTokens, response_requests.ResponseFields, response_requests.UNSUPPORTED,
    ),
    Operation(
        "post", "/v1/messages", "Answer a conversation, as Anthropic has it",
        answers.AnsweredMessage, messages.MessageFields, messages.UNSUPPORTED, streams=True,
    ),
    Operation(
        "post", "/v1/messages/count_tokens", "Count the tokens of a message's prompt",
        answers.MessageTokens, messages.MessageFields, messages.UNSUPPORTED,
    ),
    Operation(
        "post", "/tokenize", "Turn text or a conversation into tokens", answers.Tokens,
        tokenize.TokenizeFields, tokenize.UNSUPPORTED,
    ),
    Operation(
        "post", "/detokenize", "Turn tokens into text", answers.TokensText,
        tokenize.DetokenizeFields, {},
    ),
    Operation(
        "post", "/v1/embeddings", "Turn text into vectors", vector_answers.EmbeddingList,
        embeddings.EmbeddingFields, embeddings.UNSUPPORTED,
    ),
    *(
        Operation(
            "post", path, "Rank documents", vector_answers.Ranking, rerank.RerankFields,
            rerank.UNSUPPORTED,
        )
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    Operation(
        "post", "/v1/score", "Score pairs of texts", vector_answers.ScoreList, rerank.ScoreFields,
        rerank.UNSUPPORTED,
    ),
    Operation("get", "/v1/models", "List the models", answers.ModelList),
    Operation("get", "/v1/models/{name}", "Tell of one model", answers.ModelCard),
    Operation(
        "delete", "/v1/requests/{request_id}", "Cancel a running request",
        answers.CancelledRequest, statuses=(200, 202),
    ),
    Operation("get", "/", "Say what answers here", answers.About, is_open=True),
    Operation("get", "/healthz", "Say that the process lives", answers.Health, is_open=True),
    *(
        Operation(
            "get", path, "Say whether requests can be answered", answers.Readiness, is_open=True,
            statuses=(200, 503),
        )
        for path in ("/readyz", "/health")
    ),
)  # fmt: skip
_RESPONSE, _CONVERSATION = "/v1/responses/{id}", "/v1/conversations/{id}"
_FILE, _BATCH = "/v1/files/{id}", "/v1/batches/{id}"
_LISTED = ("limit", "order", "after")
# Where a store keeps responses.
STORE_OPERATIONS = (
    Operation(
        "get", _RESPONSE, "Fetch a response", answers.Response,
        query=("stream", "starting_after"), streams=True,
    ),
    Operation("delete", _RESPONSE, "Forget a response", answers.Deleted),
    Operation("post", f"{_RESPONSE}/cancel", "End a background response", answers.Response),
    Operation(
        "get", f"{_RESPONSE}/input_items", "List the items before a response's output",
        answers.ItemList, query=_LISTED,
    ),
    Operation(
        "post", "/v1/conversations", "Make a conversation", answers.Conversation,
        conversations.NewConversation,
    ),
    Operation("get", _CONVERSATION, "Fetch a conversation", answers.Conversation),
    Operation(
        "post", _CONVERSATION, "Change a conversation", answers.Conversation, conversations.Changes
    ),
    Operation("delete", _CONVERSATION, "Delete a conversation", answers.Deleted),
    Operation(
        "get", f"{_CONVERSATION}/items", "List the items of a conversation", answers.ItemList,
        query=_LISTED,
    ),
    Operation(
        "post", f"{_CONVERSATION}/items", "Add items to a conversation", answers.ItemList,
        conversations.NewItems,
    ),
    Operation("get", f"{_CONVERSATION}/items/{{item_id}}", "Fetch an item", answers.Item),
    Operation(
        "delete", f"{_CONVERSATION}/items/{{item_id}}", "Delete an item", answers.Conversation
    ),
    Operation(
        "post", "/v1/files", "Upload a file for a batch", batch_answers.File,
        batch_answers.FileForm,
    ),
    Operation(
        "get", "/v1/files", "List the files", batch_answers.FileList, query=("purpose", *_LISTED)
    ),
    Operation("get", _FILE, "Tell of one file", batch_answers.File),
    Operation("delete", _FILE, "Forget a file", answers.Deleted),
    Operation("get", f"{_FILE}/content", "Read a file", bytes),
    Operation(
        "post", "/v1/batches", "Have the requests of a file answered", batch_answers.Batch,
        batches.NewBatch,
    ),
    Operation("get", "/v1/batches", "List the batches", batch_answers.BatchList, query=_LISTED),
    Operation("get", _BATCH, "Tell of one batch", batch_answers.Batch),
    Operation("post", f"{_BATCH}/cancel", "Cancel a batch", batch_answers.Batch),
)  # fmt: skip
