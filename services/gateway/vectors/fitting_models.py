"""Says which models give vectors, and which text: none gives both."""

from baton.wire.failures import InvalidRequest, quoted
from baton.wire.pooling import Pooling
from services.gateway.openai.generation import GenerationRequest


def check_model(request: GenerationRequest, pooling: Pooling | None) -> None:
    """Check that a model can answer a request; `pooling`: how it makes vectors, if it does. Raises
    InvalidRequest."""
    if request.vector is None:
        if pooling is not None:
            message = (
                f"model: {quoted(request.model)} gives vectors and no text: ask /v1/embeddings"
            )
            raise InvalidRequest(message, reason="not_a_text_model", param="model")
    elif pooling is None:
        message = (
            f"model: {quoted(request.model)} generates text and gives no vectors: name an "
            "embedding model, which GET /v1/models shows among capabilities"
        )
        raise InvalidRequest(message, reason="not_an_embedding_model", param="model")
    elif request.vector.length is not None:
        _check_length(request.vector.length, pooling)


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
