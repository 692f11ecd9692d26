"""The refusals of quota that still hold: what they forbid is refused before any work is done.

Quota is asked when a body is read, and for the exact tokens when the prompt is tokenized. So a key
that goes on after a refusal would have that work for nothing. Requests per minute come back only
with time: until the time that quota told, the key has none. Tokens may be given back earlier
by requests that end; so only a large prompt waits for them, and only one that is no smaller than
the one that was refused. Refusals for one model's limits forbid nothing: the next request may be
for another model.

The other way round, a key that had plenty left with its last grant will hardly be refused next
(decision 0069).
"""

from collections import OrderedDict
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import BatonError, LimitExceeded
from baton.wire.v1 import failure_pb2

MAX_KEYS = 10_000
LARGE_BYTES = 16 * 1024
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class PromptSize:
    """The size of a prompt as it was sent, and the tokens that were asked for it and its answer."""

    num_bytes: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a key was refused. The limits are quota's numbers, for the answers' headers."""

    limits: failure_pb2.LimitState
    no_request_until_s: float
    num_bytes: int
    no_tokens_until_s: float


class Refusals:
    """The refusals of one gateway's keys; the oldest are forgotten."""

    def __init__(self, clock: Clock) -> None:
        # False until a first refusal is noted: nothing can be refused.
        self.holds_any = False
        self._clock = clock
        self._refused: OrderedDict[str, _Refused] = OrderedDict()
        # Those that had plenty left with their last grant.
        self._easy_keys: OrderedDict[str, None] = OrderedDict()

    def check(self, key_id: str, num_bytes: int = 0) -> None:
        """Raise LimitExceeded for a prompt of so many bytes that quota would refuse; 0 while it is
        not known."""
        refused = self._refused.get(key_id)
        if refused is None:
            return
        until_s = refused.no_request_until_s
        if num_bytes >= max(refused.num_bytes, LARGE_BYTES):
            until_s = max(until_s, refused.no_tokens_until_s)
        if (wait_s := until_s - self._clock.now()) > 0:
            raise LimitExceeded(
                f"Rate limit reached. Try again in {wait_s:.3g} s.",
                retry_after_s=wait_s,
                limits=refused.limits,
            )

    def is_unlikely(self, key_id: str) -> bool:
        """True for a key that had more than half of each minute left with its last grant."""
        return key_id in self._easy_keys

    def granted(self, key_id: str, limits: failure_pb2.LimitState) -> None:
        """Note that quota granted a request, and what is left then."""
        if not _has_half(limits):
            self._easy_keys.pop(key_id, None)
        elif key_id not in self._easy_keys:
            self._easy_keys[key_id] = None
            if len(self._easy_keys) > MAX_KEYS:
                self._easy_keys.popitem(last=False)

    def note(self, key_id: str, size: PromptSize, error: BatonError) -> None:
        """Note that quota refused a request."""
        self._easy_keys.pop(key_id, None)
        if error.reason != "rate_limit_exceeded" or error.limits is None:
            return
        limits = error.limits
        now_s, request_s = self._clock.now(), _wait_for_request_s(limits)
        is_short = limits.limit_tokens > 0 and limits.remaining_tokens < size.num_tokens
        is_short = is_short and _is_of_all_models(limits.tokens_scope)
        self.holds_any = True
        self._refused[key_id] = _Refused(
            limits,
            no_request_until_s=now_s + request_s,
            num_bytes=size.num_bytes,
            no_tokens_until_s=now_s + (error.retry_after_s if is_short else 0.0),
        )
        self._refused.move_to_end(key_id)
        if len(self._refused) > MAX_KEYS:
            self._refused.popitem(last=False)


def _wait_for_request_s(limits: failure_pb2.LimitState) -> float:
    """The time until the bucket has one request; quota tells the time until it is full."""
    if not limits.limit_requests or limits.remaining_requests:
        return 0.0
    if not _is_of_all_models(limits.requests_scope):
        return 0.0
    ms_of_others = (limits.limit_requests - 1) * _MINUTE_MS / limits.limit_requests
    return max(limits.reset_requests_ms - ms_of_others, 0.0) / 1000


def _has_half(limits: failure_pb2.LimitState) -> bool:
    has_requests = 2 * limits.remaining_requests >= limits.limit_requests
    return has_requests and 2 * limits.remaining_tokens >= limits.limit_tokens


def _is_of_all_models(scope: str) -> bool:
    """True for a limit that every request of the key falls under."""
    return ", model " not in scope
