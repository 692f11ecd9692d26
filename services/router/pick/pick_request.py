"""A request for a pick, taken from the wire with every figure checked."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

from baton.wire.failures import InvalidRequest
from baton.wire.key_registry import MAX_PRIORITY, MAX_WEIGHT, MIN_WEIGHT
from baton.wire.limits import MAX_CHOICES
from baton.wire.v1 import router_pb2
from services.router.fleet.prefix_index import view_of
from services.router.pick.sessions import SESSION_BYTES
from services.router.queue.fair_line import Turn

MAX_PROMPT_TOKENS = 1 << 24
# A prompt that is shorter by more than this factor may find room where another finds none.
_MUCH = 2


class PickRequest(NamedTuple):
    """A request's pick as the gateway asked for it, checked.

    Its first token is due at `due_at`; infinite where the client set no time. `needs` are the
    parameters that not every engine serves; `adapter` is the fingerprint of its LoRA adapter, or
    empty. It has more than ten attributes because it has those of the message.
    """

    request_id: str
    model_fp: str
    hashes: Sequence[int]
    num_prompt_tokens: int
    expected_output_tokens: int
    num_choices: int
    local_prefill: bool
    excluded: frozenset[str]
    has_begun: bool
    session: bytes
    turn: Turn
    arrived_at: float
    due_at: float
    needs: frozenset[str] = frozenset()
    adapter: str = ""

    @classmethod
    def of(cls, request: router_pb2.PickRequest, now: float, left_s: float = math.inf) -> Self:
        """Check a message whose first token is due in `left_s`. Raises InvalidRequest for figures
        that no real request has."""
        if not 0 < request.num_prompt_tokens <= MAX_PROMPT_TOKENS:
            raise InvalidRequest(
                f"num_prompt_tokens {request.num_prompt_tokens} is not in 1..{MAX_PROMPT_TOKENS}",
                param="num_prompt_tokens",
            )
        if request.num_choices > MAX_CHOICES:
            raise InvalidRequest(
                f"num_choices {request.num_choices} is over {MAX_CHOICES}", param="n"
            )
        return cls(
            request_id=request.request_id,
            model_fp=request.model_fp,
            hashes=view_of(request.block_hashes)[: request.num_prompt_tokens],
            num_prompt_tokens=request.num_prompt_tokens,
            expected_output_tokens=min(request.expected_output_tokens, MAX_PROMPT_TOKENS),
            num_choices=max(1, request.num_choices),
            local_prefill=request.local_prefill,
            excluded=frozenset(request.exclude_worker_ids),
            has_begun=request.has_begun,
            session=request.session[:SESSION_BYTES],
            turn=_turn(request),
            arrived_at=now,
            due_at=now + left_s,
            needs=frozenset(request.needs),
            adapter=request.adapter,
        )

    @property
    def is_picky(self) -> bool:
        """Not every worker of the model may serve it."""
        return bool(self.needs or self.adapter)

    def covers(self, other: Self) -> bool:
        """Return whether `other` will find no room where this request finds none.

        So it is when `other` has as many choices or more and at least half as long a prompt, and
        when no worker and no kind of prefill is open to it that is not open to this request.
        """
        return (
            self.model_fp == other.model_fp
            and self.num_choices <= other.num_choices
            and self.num_prompt_tokens <= _MUCH * other.num_prompt_tokens
            and self.excluded <= other.excluded
            and self.needs <= other.needs
            and self.adapter in ("", other.adapter)
            and (self.local_prefill or not other.local_prefill)
        )


def checked_weight(weight: float) -> float:
    """A tenant's weight within its limits; one that was not sent is 1."""
    is_sent = math.isfinite(weight) and weight > 0
    return min(max(weight, MIN_WEIGHT), MAX_WEIGHT) if is_sent else 1.0


def _turn(request: router_pb2.PickRequest) -> Turn:
    """The claim of the request's tenant."""
    return Turn(
        request.tenant,
        min(request.priority, MAX_PRIORITY),
        checked_weight(request.weight),
        len(request.block_hashes),
    )
