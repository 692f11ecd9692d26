"""/v1/embeddings: the vector of each input, as numbers or as base64 of their float32 bytes."""

import math
from array import array
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from baton.wire.failures import InternalFailure
from services.gateway.openai import limits
from services.gateway.openai.completions import prompts_of
from services.gateway.openai.decoding import Unsupported, decode_object, to_struct
from services.gateway.openai.generation import (
    Delta,
    GenerationRequest,
    Identity,
    Usage,
    VectorForm,
)
from services.gateway.openai.vllm.tokenize import Unstreamed

UNSUPPORTED: Unsupported = {"mm_processor_kwargs": ({},), "truncate_prompt_tokens": ()}
_encode = msgspec.json.Encoder().encode


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """The supported fields of a request for embeddings."""

    model: limits.ModelName
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: limits.Dimensions | None = None
    # As vLLM has them.
    add_special_tokens: bool | None = None
    priority: limits.Priority | None = None
    cache_salt: limits.CacheSalt | None = None
    # Accepted, without effect.
    user: limits.UserId | None = None


def parse(body: bytes) -> GenerationRequest:
    """The request in a body. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), EmbeddingFields, UNSUPPORTED)
    prompts = prompts_of(fields.input, "input", limits.MAX_INPUTS)
    return GenerationRequest(
        endpoint="embeddings",
        model=fields.model,
        prompt=prompts[0],
        prompts=prompts if len(prompts) > 1 else (),
        # All of the context is for the input.
        max_tokens=0,
        adds_special_tokens=fields.add_special_tokens,
        lateness=fields.priority or 0,
        cache_salt=fields.cache_salt or "",
        vector=VectorForm(fields.encoding_format == "base64", fields.dimensions),
    )


class EmbeddingsAnswer(Unstreamed):
    """The vectors in the order of their inputs. They are encoded as the answer is sent: as text a
    vector is five times as large."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        assert request.vector is not None, "its endpoint is for vectors"
        self._model = identity.model
        self._form = request.vector
        # float32, as the worker has told them.
        self._vectors: list[bytes] = [b""] * identity.num_choices

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            if delta.details is not None and delta.details.vector:
                self._vectors[delta.choice] = self._kept(delta.details.vector)

    def whole(self, usage: Usage) -> Iterator[bytes]:
        if not all(self._vectors):
            raise InternalFailure("a worker ended without the vector of an input")
        return self._pieces(usage)

    def _pieces(self, usage: Usage) -> Iterator[bytes]:
        before = b'{"object":"list","data":['
        for index, vector in enumerate(self._vectors):
            yield before + self._entry(index, vector)
            before = b","
        rest = {"model": self._model, "usage": prompt_usage(usage)}
        yield b"]," + _encode(rest)[1:]

    def _kept(self, vector: bytes) -> bytes:
        return vector if self._form.length is None else shortened(vector, self._form.length)

    def _entry(self, index: int, vector: bytes) -> bytes:
        numbers = None if self._form.is_base64 else array("f", vector).tolist()
        told = b64encode(vector).decode() if numbers is None else numbers
        return _encode({"object": "embedding", "index": index, "embedding": told})


def prompt_usage(usage: Usage) -> dict[str, int]:
    """The tokens of the inputs: there are no others."""
    num_tokens = usage.num_prompt_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def shortened(vector: bytes, length: int) -> bytes:
    """The first numbers of a vector (float32), scaled to length 1 again."""
    numbers = array("f", vector)[:length]
    norm = math.hypot(*numbers) or 1.0
    return array("f", [each / norm for each in numbers]).tobytes()
