"""The scripts in lua/ and their replies: outcomes as metrics name them, refusals as clients read
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from baton.wire import failures
from baton.wire.key_limits import organisation_of
from baton.wire.v1 import failure_pb2, quota_pb2

SCRIPT_NAMES = (
    "reserve", "renew", "settle", "reap", "agenda", "gateways", "restore", "now",
)  # fmt: skip


class ReserveOutcome(StrEnum):
    """The outcome of lua/reserve.lua."""

    GRANTED = "granted"
    # No room now: in a bucket, among the concurrent leases, in the budget.
    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    BUDGET = "budget"
    RESTORING = "restoring"  # a hard budget of which not all that was spent is known yet
    EXCEEDS_TOKENS = "exceeds_tokens"  # it never fits
    UNKNOWN_KEY = "unknown_key"
    REVOKED_KEY = "revoked_key"
    USED_REQUEST_ID = "used_request_id"


class RenewOutcome(StrEnum):
    """The state of one lease after lua/renew.lua."""

    HELD = "held"
    # No extension: the minute's tokens have no room now, the budget has none. The old grant holds.
    SHORT = "short"
    REFUSED = "refused"
    LOST = "lost"
    UNKNOWN_KEY = "unknown_key"  # lost, and the store has lost the keys, too


class SettleOutcome(StrEnum):
    """The outcome of lua/settle.lua."""

    SETTLED = "settled"
    REPEATED = "repeated"
    UNKNOWN = "unknown"  # never reserved here: debited in full
    UNKNOWN_KEY = "unknown_key"  # not settled


_OVER_RATE = {
    ReserveOutcome.REQUESTS: "requests per minute",
    ReserveOutcome.TOKENS: "tokens per minute",
    ReserveOutcome.CONCURRENCY: "concurrent requests",
}
# What lua/accounts.lua tells of limits, and lua/reserve.lua of each account.
_VALUES_OF_LIMITS = 8
_VALUES_OF_ACCOUNT = 5
_LEVELS = {"k": "key", "t": "tenant", "o": "organisation"}
_KINDS = {"budget": "budget of tokens", "cost": "budget of money"}


def scope(account: bytes, model: str) -> str:
    """The level and the model of an account, as headers and refusals name them; empty = none."""
    text = account.decode()
    if not text:
        return ""
    level = _LEVELS[text[0]]
    return f"{level}, model {model}" if text.endswith("m") else level


def spent_limit(account: bytes, kind: bytes, model: str) -> str:
    """The name of the budget, or without a kind of the tokens per minute, that has no room; empty =
    none."""
    limit = _KINDS.get(kind.decode(), _OVER_RATE[ReserveOutcome.TOKENS])
    return f"{limit} of the {scope(account, model)}" if account else ""


def limit_state(values: Sequence[int | bytes], model: str) -> failure_pb2.LimitState:
    """Read the limit state that scripts reply: for requests and for tokens the limit, what remains,
    ms until it is full, and the account."""
    requests, tokens = values[:4], values[4:]
    return failure_pb2.LimitState(
        limit_requests=int(requests[0]),
        remaining_requests=int(requests[1]),
        reset_requests_ms=int(requests[2]),
        limit_tokens=int(tokens[0]),
        remaining_tokens=int(tokens[1]),
        reset_tokens_ms=int(tokens[2]),
        requests_scope=scope(bytes(requests[3]), model),
        tokens_scope=scope(bytes(tokens[3]), model),
    )


@dataclass(frozen=True, slots=True)
class Reserved:
    """The reply of lua/reserve.lua. `ms` is the lease's time, or the time to wait.

    A refusal names the scope that refuses, and the budget if it is one.
    """

    outcome: ReserveOutcome
    num_granted: int
    num_prompt: int
    ms: int
    scope: str
    spent_budget: str
    limits: failure_pb2.LimitState


def reserved(reply: Sequence[int | bytes], request: quota_pb2.ReserveRequest) -> Reserved:
    """Read the reply of lua/reserve.lua to a request."""
    outcome, granted, prompt, ms, account, kind, *limits = reply
    model = request.model
    state = limit_state(limits[:_VALUES_OF_LIMITS], model)
    state.accounts.extend(_account_states(limits[_VALUES_OF_LIMITS:], request))
    return Reserved(
        ReserveOutcome(bytes(outcome).decode()),
        int(granted),
        int(prompt),
        int(ms),
        scope(bytes(account), model),
        spent_limit(bytes(account), bytes(kind), model) if kind else "",
        state,
    )


def _account_states(
    values: Sequence[int | bytes], request: quota_pb2.ReserveRequest
) -> Iterator[failure_pb2.AccountState]:
    """Read what is left of each account, with the names that authentication tells."""
    owners = {
        "k": request.key_id,
        "t": f"tenant:{request.tenant}",
        "o": f"organisation:{organisation_of(request.tenant)}",
    }
    for start in range(0, len(values), _VALUES_OF_ACCOUNT):
        account, *left = values[start : start + _VALUES_OF_ACCOUNT]
        name = bytes(account).decode()
        requests, tokens, budget, cost = (int(each) if int(each) >= 0 else None for each in left)
        yield failure_pb2.AccountState(
            owner=owners[name[0]],
            model=request.model if name.endswith("m") else "",
            remaining_requests=requests,
            remaining_tokens=tokens,
            remaining_budget=budget,
            remaining_cost=cost,
        )


def exceeds_limit(
    num_tokens: str, limit: int, where: str = "key", limits: failure_pb2.LimitState | None = None
) -> failures.InvalidRequest:
    """The error of a request that can never fit."""
    return failures.InvalidRequest(
        f"Request too large: {num_tokens} tokens (prompt and largest answer) can never fit the "
        f"limit of {limit} tokens per minute of the {where}. Shorten the prompt or lower the "
        "maximum of tokens.",
        reason="request_exceeds_limit",
        limits=limits,
    )


def _num_tokens(request: quota_pb2.ReserveRequest) -> str:
    """The size of a request, for people; of an estimated prompt it is the least."""
    if request.min_prompt_tokens:
        return f"at least {request.min_prompt_tokens + request.num_output_tokens}"
    return str(request.num_prompt_tokens + request.num_output_tokens)


def refusal(reserved: Reserved, request: quota_pb2.ReserveRequest) -> failures.BatonError:
    """The error of a refused reservation; clients read its message."""
    outcome, limits, wait_s = reserved.outcome, reserved.limits, reserved.ms / 1000
    if outcome is ReserveOutcome.EXCEEDS_TOKENS:
        return exceeds_limit(_num_tokens(request), limits.limit_tokens, reserved.scope, limits)
    if outcome is ReserveOutcome.BUDGET:
        return failures.LimitExceeded(
            f"The {reserved.spent_budget} has no room for this request in this period.",
            reason="insufficient_quota",
            retry_after_s=wait_s,
            limits=limits,
        )
    if outcome in _OVER_RATE:
        return failures.LimitExceeded(
            f"Rate limit reached: {_OVER_RATE[outcome]} of the {reserved.scope}. "
            f"Try again in {wait_s:g} s.",
            retry_after_s=wait_s,
            limits=limits,
        )
    if outcome is ReserveOutcome.RESTORING:
        return failures.Unavailable(
            "the spent part of the budget is being restored",
            reason="quota_unavailable",
            retry_after_s=1,
        )
    if outcome is ReserveOutcome.USED_REQUEST_ID:
        return failures.InvalidRequest("the request id was used before", param="request_id")
    assert outcome in (ReserveOutcome.UNKNOWN_KEY, ReserveOutcome.REVOKED_KEY), outcome
    return failures.AuthenticationFailed("the API key is not valid")
