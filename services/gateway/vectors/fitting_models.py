"""Says which models give vectors, which scores, and which text: none gives two of them."""

from dataclasses import replace

import msgspec

from baton.wire.failures import InvalidRequest, quoted
from baton.wire.pooling import Pooling
from services.gateway.openai.generation import (
    ChatMessages,
    GenerationRequest,
    PlainText,
    PromptTokens,
)

# By what a model gives: where to ask for it.
_PATHS = {
    "text": "/v1/chat/completions",
    "vectors": "/v1/embeddings",
    "scores": "/v1/rerank",
}
_REASONS = {
    "text": "not_a_text_model",
    "vectors": "not_an_embedding_model",
    "scores": "not_a_reranker",
}
_FLOAT_BYTES = 4
# Of what a gateway knows of one of many inputs, besides its vector.
_INPUT_BYTES = 8 * 1024


def fitted(
    request: GenerationRequest, pooling: Pooling | None, *, has_pair_template: bool
) -> GenerationRequest:
    """The request as its model reads it. Raises InvalidRequest for a model that gives something
    else. `pooling`: None gives text; `has_pair_template`: its chat template writes pairs."""
    wanted = "text"
    if request.vector is not None:
        wanted = "scores" if request.vector.is_score else "vectors"
    given = "text"
    if pooling is not None:
        given = "scores" if pooling.is_score else "vectors"
    if wanted != given:
        message = f"model: {quoted(request.model)} gives {given} and no {wanted}"
        hint = f"ask it at {_PATHS[given]}, or name another model of GET /v1/models"
        raise InvalidRequest(f"{message}: {hint}", reason=_REASONS[wanted], param="model")
    if request.vector is not None and request.vector.length is not None:
        assert pooling is not None, "it gives vectors"
        _check_length(request.vector.length, pooling)
    if wanted != "scores" or has_pair_template:
        return request
    prompts = tuple(map(_joined, request.prompts))
    return replace(request, prompt=_joined(request.prompt), prompts=prompts)


def bytes_of_list(request: GenerationRequest, pooling: Pooling | None, most_bytes: int) -> int:
    """The memory that a list of inputs takes until its vectors are sent. Raises InvalidRequest for
    one that takes more than `most_bytes`."""
    assert pooling is not None, "it gives vectors"
    of_vector = 0 if pooling.is_score else pooling.width * _FLOAT_BYTES
    num_inputs, of_input = len(request.prompts), _INPUT_BYTES + of_vector
    if num_inputs * of_input > most_bytes:
        message = (
            f"input: got {num_inputs}, whose vectors of {pooling.width} numbers are more than this "
            f"server holds of one request; expected at most {most_bytes // of_input}"
        )
        raise InvalidRequest(message, param="input")
    return num_inputs * of_input


def _joined(prompt: ChatMessages | PlainText | PromptTokens) -> PlainText:
    """A pair of texts, one behind the other."""
    assert isinstance(prompt, ChatMessages), "a pair is two messages"
    turns = msgspec.json.decode(prompt.messages_json)
    return PlainText("".join(turn["content"] for turn in turns))


def _check_length(length: int, pooling: Pooling) -> None:
    if not pooling.can_shorten:
        if length == pooling.width:
            return
        expected = f"{pooling.width}, because the model says of no other that it can be used"
    elif pooling.lengths and length != pooling.width:
        if length in pooling.lengths:
            return
        expected = ", ".join(map(str, pooling.lengths))
    elif length <= pooling.width:
        return
    else:
        expected = f"1 to {pooling.width}"
    message = f"dimensions: got {length}; expected {expected}"
    raise InvalidRequest(message, param="dimensions")
