"""`truncation: auto`: a conversation that is too long for its model loses its oldest turns."""

from dataclasses import replace
from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import tokenizer_pb2
from services.gateway.openai.generation import ChatMessages
from services.gateway.request.deps import Encode
from services.gateway.request.job import ValidRequest


async def encode_fitting(
    valid: ValidRequest, encode: Encode, num_room: int
) -> tokenizer_pb2.EncodeResponse:
    """The prompt's tokens, without the oldest turns if all are too many: then so few go that
    `num_room` tokens are left for the answer. Raises InvalidRequest when the last turn alone is too
    long."""
    encoded = await _encode(valid, encode, 1)
    if encoded is not None:
        return encoded
    shorter = _Shortened(valid)
    if not shorter:
        return await encode(valid)
    encoded = await _encode(shorter[-1], encode, 1)
    if encoded is None:
        return await encode(shorter[-1])
    low, high = 0, len(shorter) - 1
    while low < high:
        middle = (low + high) // 2
        found = await _encode(shorter[middle], encode, num_room)
        if found is None:
            low = middle + 1
        else:
            high, encoded = middle, found
    return encoded


async def _encode(
    valid: ValidRequest, encode: Encode, num_room: int
) -> tokenizer_pb2.EncodeResponse | None:
    """The tokens; None when they leave less room than that."""
    try:
        encoded = await encode(valid)
    except InvalidRequest as error:
        if error.reason == "context_length_exceeded":
            return None
        raise
    num_tokens = len(encoded.token_ids) // TOKEN_BYTES
    return encoded if num_tokens + num_room <= valid.model.max_model_len else None


class _Shortened:
    """The request without its first turn, without its first two, and so on. Instructions and the
    last turn stay, and a result does not stay without its call."""

    def __init__(self, valid: ValidRequest) -> None:
        prompt = valid.request.prompt
        assert isinstance(prompt, ChatMessages)
        self._valid = valid
        self._prompt = prompt
        self._turns: list[dict[str, Any]] = msgspec.json.decode(prompt.messages_json)
        others = (n for n, turn in enumerate(self._turns) if turn["role"] != "system")
        self._num_instructions = next(others, len(self._turns))
        self._starts = [
            place
            for place in range(self._num_instructions + 1, len(self._turns))
            if self._turns[place]["role"] != "tool"
        ]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, place: int) -> ValidRequest:
        turns = self._turns[: self._num_instructions] + self._turns[self._starts[place] :]
        encoded = msgspec.json.encode(turns)
        shorter = msgspec.structs.replace(self._prompt, messages_json=encoded)
        return replace(self._valid, request=replace(self._valid.request, prompt=shorter))
