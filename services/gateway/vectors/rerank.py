"""/v1/rerank and /v1/score: how well documents fit a query, as a reranker tells it from 0 to 1.

Query and document are one prompt, by the model's chat template if that has these two roles, or else
one behind the other as they are.
"""

from array import array
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.wire.failures import InternalFailure, InvalidRequest
from services.gateway.openai import limits
from services.gateway.openai.decoding import Unsupported, decode_object, to_struct
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    EndpointName,
    GenerationRequest,
    Identity,
    Usage,
    VectorForm,
)
from services.gateway.openai.vllm.tokenize import Unstreamed
from services.gateway.vectors.embeddings import prompt_usage

UNSUPPORTED: Unsupported = {
    "activation": (True,),
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
}

# The characters of a text that is paired with many, as often as it is: as many as one body has.
MAX_REPEATED_CHARS = 8 * 1024 * 1024

Pair = tuple[str, str]
Passage = Annotated[str, Meta(min_length=1)]


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document as Cohere and Jina have it."""

    text: Passage


Documents = Annotated[list[Passage | Document], Meta(min_length=1, max_length=limits.MAX_INPUTS)]
Texts = Passage | Annotated[list[Passage], Meta(min_length=1, max_length=limits.MAX_INPUTS)]


class PairFields(msgspec.Struct, kw_only=True):
    """The fields that both endpoints have."""

    model: limits.ModelName
    priority: limits.Priority | None = None
    cache_salt: limits.CacheSalt | None = None
    # Accepted, without effect.
    user: limits.UserId | None = None


class RerankFields(PairFields, kw_only=True):
    """The supported fields of a request to rank documents."""

    query: Passage
    documents: Documents
    # 0 is all, as vLLM has it.
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None


class ScoreFields(PairFields, kw_only=True):
    """The supported fields of a request to score pairs of texts."""

    text_1: Texts
    text_2: Texts


def parse_rerank(body: bytes) -> GenerationRequest:
    """The request in a body of /v1/rerank. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), RerankFields, UNSUPPORTED)
    texts = [each if isinstance(each, str) else each.text for each in fields.documents]
    _check_repeated("query", fields.query, len(texts))
    told: dict[str, Any] = {"top_n": fields.top_n or len(texts)}
    if fields.return_documents is not False:
        told["documents"] = texts
    return _request("rerank", fields, [(fields.query, text) for text in texts], told)


def parse_score(body: bytes) -> GenerationRequest:
    """The request in a body of /v1/score. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), ScoreFields, UNSUPPORTED)
    first, second = _as_list(fields.text_1), _as_list(fields.text_2)
    if len(first) == 1:
        _check_repeated("text_1", first[0], len(second))
        first *= len(second)
    if len(first) != len(second):
        message = f"text_2: got {len(second)} texts; expected as many as text_1, {len(first)}"
        raise InvalidRequest(message, param="text_2")
    return _request("score", fields, list(zip(first, second, strict=True)), {})


def _check_repeated(field: str, text: str, times: int) -> None:
    """Refuse a text that would make a small body a thousand times larger."""
    if times > 1 and len(text) * times > MAX_REPEATED_CHARS:
        message = (
            f"{field}: got {len(text)} characters for each of {times} texts; "
            f"expected at most {MAX_REPEATED_CHARS // times}"
        )
        raise InvalidRequest(message, param=field)


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _request(
    endpoint: EndpointName, fields: PairFields, pairs: Sequence[Pair], told: dict[str, Any]
) -> GenerationRequest:
    prompts = tuple(_prompt(*pair) for pair in pairs)
    return GenerationRequest(
        endpoint=endpoint,
        model=fields.model,
        prompt=prompts[0],
        prompts=prompts if len(prompts) > 1 else (),
        max_tokens=0,
        lateness=fields.priority or 0,
        cache_salt=fields.cache_salt or "",
        repeated=told,
        vector=VectorForm(is_score=True),
    )


def _prompt(query: str, document: str) -> ChatMessages:
    turns = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    return ChatMessages(msgspec.json.encode(turns), adds_generation_prompt=True)


class _Scores(Unstreamed):
    """The scores of all pairs, in their order."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._told = request.repeated
        self._scores: list[float | None] = [None] * identity.num_choices

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            if delta.details is not None and delta.details.vector:
                [self._scores[delta.choice]] = array("f", delta.details.vector)

    def _all(self) -> list[float]:
        scores = [each for each in self._scores if each is not None]
        if len(scores) < len(self._scores):
            raise InternalFailure("a worker ended without the score of a pair")
        return scores


class RerankAnswer(_Scores):
    """The documents with the best scores, in the form that Cohere, Jina and vLLM have in common."""

    def whole(self, usage: Usage) -> list[bytes]:
        scores, documents = self._all(), self._told.get("documents")
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({} if documents is None else {"document": {"text": documents[index]}})
            for index in ranked[: self._told["top_n"]]
        ]
        answer = {
            "id": f"rerank-{self._identity.request_id}",
            "model": self._identity.model,
            "results": results,
            "usage": prompt_usage(usage),
        }
        return [msgspec.json.encode(answer)]


class ScoreAnswer(_Scores):
    """The score of each pair, in vLLM's form."""

    def whole(self, usage: Usage) -> list[bytes]:
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(self._all())
        ]
        answer = {
            "id": f"score-{self._identity.request_id}",
            "object": "list",
            "created": self._identity.created_unix_s,
            "model": self._identity.model,
            "data": data,
            "usage": prompt_usage(usage),
        }
        return [msgspec.json.encode(answer)]
